//! `berth calibrate --self-test`.

use anyhow::{Result, bail};
use protocol::calibration::CalibrationDevice;
use protocol::plan::DeviceBackend;
use protocol::self_test::{SelfTest, TestedCopy, TestedDevice};
use serde::Serialize;

use crate::engine::session::Session;
use crate::engine::supervise::test_gpus;
use crate::inventory::Inventory;
use crate::render::{self, tables};
use crate::self_test::SelfTests;

#[derive(Serialize)]
struct SelfTestDocument<'a> {
    schema: u32,
    #[serde(flatten)]
    found: &'a SelfTest,
}

/// Version of the document.
const SCHEMA: u32 = 1;

/// Tests all GPUs among the devices whatever is known of them, keeps what is found and prints it.
///
/// # Errors
/// There is no GPU, the executor fails, or something differs.
pub fn run(
    self_tests: &SelfTests,
    mut session: Session,
    mut devices: Vec<CalibrationDevice>,
    inventory: &Inventory,
    json: bool,
) -> Result<()> {
    devices.retain(|device| matches!(device.backend, DeviceBackend::Cuda { .. }));
    let to_test = self_tests.all(devices, inventory, &session.program);
    if to_test.devices.is_empty() {
        let why = session.why_no_cuda.as_deref().unwrap_or("`berth devices` tells why");
        bail!("there is no GPU that could be tested: {why}");
    }
    let found = test_gpus(&mut session, &to_test, &inventory.host)?;
    session.end();
    if json {
        render::document::print(&SelfTestDocument { schema: SCHEMA, found: &found })?;
    } else {
        render::print(&table(&found))?;
    }
    match self_tests.keep(&to_test, &found) {
        Ok(()) => {
            if let Some(path) = self_tests.path() {
                eprintln!("berth: kept in {}", path.display());
            }
        }
        Err(message) => eprintln!("berth: {message}"),
    }
    let wrong = found.devices.iter().filter(|device| !device.differences.is_empty()).count()
        + found.copies.iter().filter(|copy| copy.changed.is_some()).count();
    if wrong > 0 {
        bail!(
            "something differs; plans do without it; hint: another driver may mend it, test it with `berth calibrate --self-test`"
        );
    }
    Ok(())
}

/// What was found: a line for each device and each pair of them, and one for each difference.
fn table(found: &SelfTest) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for TestedDevice { id, families, ms, differences } in &found.devices {
        let result = match differences.len() {
            0 => "as the host".to_owned(),
            count => format!("{count} differ"),
        };
        let what = format!("{} families of kernels in {ms:.0} ms", families.len());
        rows.push(vec![id.to_string(), what, result]);
        let differ = differences.iter();
        rows.extend(differ.map(|differs| vec![id.to_string(), differs.told(), String::new()]));
    }
    for TestedCopy { from, to, direct, changed } in &found.copies {
        let way = if *direct { "directly" } else { "through the host" };
        let result = if changed.is_none() { "as it was" } else { "changed" };
        rows.push(vec![format!("{from} to {to}"), format!("a pattern, {way}"), result.to_owned()]);
    }
    tables::plain(&["device", "tested", "result"], rows)
}
