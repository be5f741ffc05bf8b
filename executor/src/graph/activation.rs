//! The functions of single elements that graphs know: linear layers end with one, or one stands
//! alone.

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x
    None,
    /// x · sigmoid(x)
    Silu,
    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))): GELU by its tanh form.
    GeluTanh,
    /// x/2 · (1 + erf(x/√2)), the exact GELU.
    GeluErf,
    /// x · sigmoid(1.702 x): GELU by a sigmoid.
    QuickGelu,
}
