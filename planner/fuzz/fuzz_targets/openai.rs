//! Any bytes as a body of OpenAI's image routes: refused as the client's fault, or read into a job.

#![no_main]

mod wires;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    wires::openai(data);
});
