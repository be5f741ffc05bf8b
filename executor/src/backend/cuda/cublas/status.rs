//! What cuBLASLt's functions answer.

/// An error's words, where a call's code says one.
///
/// # Errors
/// The call with the code's name (`cublasStatus_t` of cuBLAS's reference).
pub fn check(call: &str, code: u32) -> Result<(), String> {
    let name = match code {
        0 => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an unknown status",
    };
    Err(format!("{call} failed: {name} ({code})"))
}
