//! A product as cuBLASLt describes it: the matrices' layouts, what follows the sums, and the
//! algorithm that it chose.
//!
//! The library counts columns first. Row-major `out [rows, columns] = x [rows, depth] · weightᵀ
//! [depth, columns]` is to it the transposed product: its A is the weight, transposed; its B is x;
//! its result has `columns` rows and `rows` columns.
//!
//! Invariant: no algorithm needs a workspace, so that plans do not depend on whether the library is
//! there.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cudaDataType_t,
};
use cudarc::driver::sys::CUstream;

use super::library::{Functions, Proposal};
use super::status;
use crate::backend::cuda::address::Address;

/// All that an algorithm is chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Whether the operands are bf16; else f16.
    pub bf16: bool,
    /// Whether the result is bf16, as operands then are; else f32.
    pub bf16_result: bool,
    /// Of x and of the result.
    pub rows: usize,
    /// Of the result; rows of the weight.
    pub columns: usize,
    /// What is summed over; from one row of x to the next.
    pub depth: usize,
    /// From one row of the weight to the next, in elements: more than the depth where the weight
    /// has more inputs.
    pub weight_stride: usize,
    /// From one row of the result to the next, in elements.
    pub stride: usize,
    /// What is done with the sums.
    pub epilogue: Epilogue,
    /// What the addresses of weight, x and result are multiples of: powers of two, in bytes.
    pub alignments: [u32; 3],
}

/// What is done with sums: multiplied by the factor of [`ProductOperands`] in any case.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Whether a bias of the result's type, one number for each column, is added.
    pub bias: bool,
    /// Whether GELU's approximation by tanh follows.
    pub gelu: bool,
}

/// Where everything is.
#[derive(Debug, Clone, Copy)]
pub struct ProductOperands {
    /// `[columns, weight_stride]` of 16-bit floats, of which the first `depth` of each row are
    /// multiplied.
    pub weight: Address,
    /// `[rows, depth]` of 16-bit floats.
    pub x: Address,
    /// `[rows, stride]`.
    pub out: Address,
    /// `[columns]` of the result's type, where the epilogue adds it.
    pub bias: Address,
    /// Of all sums.
    pub factor: f32,
    /// Whether the result is added to what is there; not for results in bf16, which would be
    /// rounded twice.
    pub adds: bool,
}

impl ProductOperands {
    /// What the addresses of weight, x and result are multiples of.
    pub fn alignments(&self) -> [u32; 3] {
        /// What the library takes for granted where it is told nothing; more changes no choice.
        const MAX: u32 = 256;
        [self.weight, self.x, self.out].map(|Address(at)| 1 << at.trailing_zeros().min(MAX.ilog2()))
    }
}

/// A product that the library computes.
pub struct Product {
    description: Description,
    weight: MatrixLayout,
    x: MatrixLayout,
    out: MatrixLayout,
    algorithm: cublasLtMatmulAlgo_t,
    has_bias: bool,
}

impl Product {
    /// Describes a product, and asks the library how to compute it.
    ///
    /// # Errors
    /// What it answers where it cannot.
    pub fn choose(
        functions: &'static Functions,
        handle: cublasLtHandle_t,
        shape: &Shape,
        operands: &ProductOperands,
    ) -> Result<Product, String> {
        let Shape { rows, columns, depth, weight_stride, stride, epilogue, .. } = *shape;
        let half =
            if shape.bf16 { cudaDataType_t::CUDA_R_16BF } else { cudaDataType_t::CUDA_R_16F };
        let result = if shape.bf16_result {
            cudaDataType_t::CUDA_R_16BF
        } else {
            cudaDataType_t::CUDA_R_32F
        };
        let description = Description::new(functions, epilogue, result)?;
        if epilogue.bias {
            description.set_bias(operands.bias)?;
        }
        let weight = MatrixLayout::new(functions, half, [depth, columns], weight_stride)?;
        let x = MatrixLayout::new(functions, half, [depth, rows], depth)?;
        let out = MatrixLayout::new(functions, result, [columns, rows], stride)?;
        let preference = Preference::new(functions, shape.alignments)?;
        /// Proposals to look at; the first is the fastest by the library's reckoning.
        const PROPOSALS: usize = 4;
        const NONE: Proposal = Proposal {
            algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace_bytes: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut proposals = [NONE; PROPOSALS];
        let mut count: c_int = 0;
        // SAFETY: all handles are alive; the library writes at most so many proposals, and their
        // number.
        let code = unsafe {
            (functions.propose)(
                handle,
                description.raw,
                weight.raw,
                x.raw,
                out.raw,
                out.raw,
                preference.raw,
                PROPOSALS as c_int,
                proposals.as_mut_ptr(),
                &raw mut count,
            )
        };
        status::check("cublasLtMatmulAlgoGetHeuristic", code)?;
        let proposals = proposals.iter().take(usize::try_from(count).unwrap_or(0));
        let mut able = proposals.filter(|one| one.state == 0 && one.workspace_bytes == 0);
        let chosen = able.next().ok_or("it has no algorithm without a workspace")?;
        let algorithm = chosen.algorithm;
        Ok(Product { description, weight, x, out, algorithm, has_bias: epilogue.bias })
    }

    /// Hands the product to a stream.
    ///
    /// # Errors
    /// What the library answers.
    ///
    /// # Safety
    /// The operands have this product's shape, and are valid until the stream has done this; the
    /// stream is on the handle's GPU, whose context is current.
    pub unsafe fn multiply(
        &self,
        functions: &Functions,
        handle: cublasLtHandle_t,
        operands: &ProductOperands,
        stream: CUstream,
    ) -> Result<(), String> {
        if self.has_bias {
            self.description.set_bias(operands.bias)?;
        }
        let ProductOperands { weight, x, out, factor, adds, .. } = *operands;
        let [weight, x, out] = [weight, x, out].map(|Address(at)| at as *mut c_void);
        let kept = if adds { 1.0f32 } else { 0.0 };
        // SAFETY: the caller's promise; factors are read during the call, as by default.
        let code = unsafe {
            (functions.multiply)(
                handle,
                self.description.raw,
                (&raw const factor).cast(),
                weight,
                self.weight.raw,
                x,
                self.x.raw,
                (&raw const kept).cast(),
                out,
                self.out.raw,
                out,
                self.out.raw,
                &raw const self.algorithm,
                std::ptr::null_mut(),
                0,
                stream,
            )
        };
        status::check("cublasLtMatmul", code)
    }
}

struct Description {
    functions: &'static Functions,
    raw: cublasLtMatmulDesc_t,
}

impl Description {
    /// Of operands in 16 bits, with sums in f32 and results of this type.
    fn new(
        functions: &'static Functions,
        epilogue: Epilogue,
        result: cudaDataType_t,
    ) -> Result<Description, String> {
        use cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_EPILOGUE,
            CUBLASLT_MATMUL_DESC_TRANSA,
        };
        /// `CUBLAS_OP_T`: read with rows and columns exchanged.
        const TRANSPOSED: c_uint = 1;
        let sums = cublasComputeType_t::CUBLAS_COMPUTE_32F as c_uint;
        let f32s = cudaDataType_t::CUDA_R_32F as c_uint;
        let mut raw: cublasLtMatmulDesc_t = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe { (functions.product_create)(&raw mut raw, sums, f32s) };
        status::check("cublasLtMatmulDescCreate", code)?;
        let description = Description { functions, raw };
        description.set(CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED.to_ne_bytes())?;
        let epilogue_kind = match epilogue {
            Epilogue { bias: false, gelu: false } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue { bias: true, gelu: false } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue { bias: false, gelu: true } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU,
            Epilogue { bias: true, gelu: true } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        description.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue_kind as c_uint).to_ne_bytes())?;
        if epilogue.bias {
            let bias = result as c_uint;
            description.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias.to_ne_bytes())?;
        }
        Ok(description)
    }

    fn set_bias(&self, bias: Address) -> Result<(), String> {
        let attribute = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
        self.set(attribute, &bias.0.to_ne_bytes())
    }

    fn set(&self, attribute: cublasLtMatmulDescAttributes_t, value: &[u8]) -> Result<(), String> {
        // SAFETY: the value is read during the call.
        let code = unsafe {
            (self.functions.product_set)(
                self.raw,
                attribute as c_uint,
                value.as_ptr().cast(),
                value.len(),
            )
        };
        status::check("cublasLtMatmulDescSetAttribute", code)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `new`; calls that used it have returned.
        unsafe { (self.functions.product_destroy)(self.raw) };
    }
}

struct MatrixLayout {
    functions: &'static Functions,
    raw: cublasLtMatrixLayout_t,
}

impl MatrixLayout {
    /// Of a matrix whose columns lie one after the other, `stride` elements apart.
    fn new(
        functions: &'static Functions,
        element: cudaDataType_t,
        [rows, columns]: [usize; 2],
        stride: usize,
    ) -> Result<MatrixLayout, String> {
        let mut raw: cublasLtMatrixLayout_t = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe {
            (functions.layout_create)(
                &raw mut raw,
                element as c_uint,
                rows as u64,
                columns as u64,
                stride as i64,
            )
        };
        status::check("cublasLtMatrixLayoutCreate", code)?;
        Ok(MatrixLayout { functions, raw })
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: made by `new`; calls that used it have returned.
        unsafe { (self.functions.layout_destroy)(self.raw) };
    }
}

struct Preference {
    functions: &'static Functions,
    raw: cublasLtMatmulPreference_t,
}

impl Preference {
    /// No workspace, and addresses of weight, x and result that are multiples of these.
    fn new(functions: &'static Functions, alignments: [u32; 3]) -> Result<Preference, String> {
        use cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        };
        let mut raw: cublasLtMatmulPreference_t = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe { (functions.preference_create)(&raw mut raw) };
        status::check("cublasLtMatmulPreferenceCreate", code)?;
        let preference = Preference { functions, raw };
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &0u64.to_ne_bytes())?;
        let [weight, x, out] = alignments.map(u32::to_ne_bytes);
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &weight)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out)?;
        Ok(preference)
    }

    fn set(
        &self,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: &[u8],
    ) -> Result<(), String> {
        // SAFETY: the value is read during the call.
        let code = unsafe {
            (self.functions.preference_set)(
                self.raw,
                attribute as c_uint,
                value.as_ptr().cast(),
                value.len(),
            )
        };
        status::check("cublasLtMatmulPreferenceSetAttribute", code)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`; calls that used it have returned.
        unsafe { (self.functions.preference_destroy)(self.raw) };
    }
}
