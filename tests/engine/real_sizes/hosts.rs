//! Hosts that no shipped profile describes.

/// A host with one card that holds all of the model, for budgets in between.
pub const LARGE_CARD: &str = r#"
name = "large-card"
[host]
memory = "128GiB"
cores = 16
[[device]]
kind = "cuda"
total = "80GiB"
link = "50GB/s"
flops = "60TFLOP/s"
memory_bandwidth = "3TB/s"
"#;

/// A device that does not hold the largest block of the DiT, which has 680 MB.
pub const SMALL_DEVICE: &str = r#"
name = "small-device"
[host]
compute = false
[[device]]
kind = "virtual"
total = "512MiB"
link = "2GiB/s"
"#;

/// A fast card beside a slow one, and less RAM than what they have no room for.
pub const LITTLE_RAM: &str = r#"
name = "little-ram"
[host]
memory = "16GiB"
available = "13GiB"
cores = 16
storage_bandwidth = "3GB/s"
[[device]]
kind = "cuda"
total = "80GiB"
link = "55GB/s"
flops = "494TFLOP/s"
half_flops = "989TFLOP/s"
memory_bandwidth = "3350GB/s"
[[device]]
kind = "cuda"
total = "8GiB"
link = "6.5GB/s"
flops = "20TFLOP/s"
half_flops = "40TFLOP/s"
memory_bandwidth = "256GB/s"
"#;
