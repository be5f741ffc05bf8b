//! The table of a calibration: what was measured beside what was counted with.

use protocol::Bytes;

use super::{table, text_of};
use crate::calibration::Figure;
use crate::inventory::Source;

/// A row for each figure.
pub fn calibration(figures: &[Figure]) -> String {
    let mut rows = table(&["device", "figure", "measured", "before", ""], 2);
    for figure in figures {
        let stays = match figure.before_source {
            Source::Declared => "declared, stays",
            Source::Datasheet => "datasheet",
            Source::Assumed => "assumed",
            Source::Measured => "measured",
        };
        rows.add_row([
            figure.device.clone(),
            name(figure.figure).replace('_', " "),
            shown(figure.figure, figure.measured),
            shown(figure.figure, figure.before),
            stays.to_owned(),
        ]);
    }
    if let Some(column) = rows.column_mut(4) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    text_of(&rows)
}

/// A figure's name without its unit.
fn name(figure: &str) -> &str {
    let units = ["_flops_per_s", "_bytes_per_s", "_per_s", "_bytes"];
    units.iter().find_map(|unit| figure.strip_suffix(unit)).unwrap_or(figure)
}

/// A value with the unit that its figure's name ends in.
fn shown(figure: &str, value: f64) -> String {
    if figure == "overhead_bytes" {
        return Bytes(value as u64).to_string();
    }
    let unit = match figure {
        _ if figure.ends_with("_flops_per_s") => "FLOP/s",
        _ if figure.ends_with("_bytes_per_s") => "B/s",
        _ => "/s",
    };
    let (value, prefix) = match value {
        v if v >= 1e12 => (v / 1e12, "T"),
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v => (v / 1e3, "k"),
    };
    format!("{value:.1} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_unit() {
        let figure = |figure, measured, before, before_source| Figure {
            device: "cuda0".to_owned(),
            figure,
            measured,
            before,
            before_source,
        };
        let text = calibration(&[
            figure("half_flops_per_s", 6.1e13, 8e13, Source::Assumed),
            figure("link_bytes_per_s", 1.25e10, 2e10, Source::Declared),
            figure("starts_per_s", 123_456.0, 2e5, Source::Assumed),
            figure("overhead_bytes", 4.0 * 1048576.0, 1048576.0, Source::Assumed),
        ]);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["cuda0", "half", "61.0", "TFLOP/s", "80.0", "TFLOP/s", "assumed"]);
        assert_eq!(
            rows[1],
            ["cuda0", "link", "12.5", "GB/s", "20.0", "GB/s", "declared,", "stays"]
        );
        assert_eq!(rows[2], ["cuda0", "starts", "123.5", "k/s", "200.0", "k/s", "assumed"]);
        assert_eq!(rows[3], ["cuda0", "overhead", "4.00", "MiB", "1.00", "MiB", "assumed"]);
    }
}
