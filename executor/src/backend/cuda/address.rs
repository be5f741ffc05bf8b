//! Addresses in a GPU's memory.

/// A device address, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// Of nothing: what a kernel takes for an operand that is not there.
    pub const NONE: Address = Address(0);

    /// The address that lies `bytes` after this one.
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}
