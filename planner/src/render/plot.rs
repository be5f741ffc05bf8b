//! A curve as a picture: one SVG file, whose texts are texts.

mod axis;
mod label;

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use protocol::{Bytes, JobShape};

use crate::demo;
use crate::policy::Objective;
use crate::tune::{Mark, Tuning, as_cap};
use axis::{Axis, Unit};
use label::Labels;

/// Width and height in pixels.
const SIZE: (u32, u32) = (960, 600);

/// Sizes of texts; the SVG has them divided by 1.24, as plotters takes them for the height of a
/// line.
const TITLE_SIZE: f64 = 24.0;
const TEXT_SIZE: f64 = 17.0;

const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(115, 115, 115);
const GRID: RGBColor = RGBColor(228, 228, 228);
const SHADE: RGBColor = RGBColor(242, 242, 242);
/// Blue and vermilion of Okabe and Ito's palette, which the colour-blind tell apart.
const PREDICTED: RGBColor = RGBColor(0, 114, 178);
const MEASURED: RGBColor = RGBColor(213, 94, 0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type DrawResult = Result<(), Box<dyn Error + Send + Sync>>;

/// The SVG document of a curve that has steps.
pub fn svg(tuning: &Tuning) -> anyhow::Result<String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    draw(&area, tuning).map_err(|error| anyhow::anyhow!("cannot draw the curve: {error}"))?;
    drop(area);
    Ok(text)
}

fn draw(area: &Area<'_>, tuning: &Tuning) -> DrawResult {
    area.fill(&WHITE)?;
    title(area, tuning)?;
    let [x, y] = axes(tuning);
    let ([x_first, x_last], [y_first, y_last]) = (x.ends(), y.ends());
    let mut chart = ChartBuilder::on(area)
        .margin_top(76)
        .margin_right(28)
        .margin_bottom(12)
        .margin_left(12)
        .x_label_area_size(52)
        .y_label_area_size(70)
        .build_cartesian_2d(x_first..x_last, y_first..y_last)?;
    too_small(area, &chart, tuning, &x)?;
    scales(area, &chart, &x, &y, tuning)?;
    let line = stairs(tuning, &x, &y);
    chart.draw_series([PathElement::new(line, PREDICTED.stroke_width(2))])?;
    runs(&mut chart, tuning, &x, &y)?;
    marks(area, &mut chart, tuning, &x, &y)?;
    area.present()?;
    Ok(())
}

/// Axes over all steps and all that was measured.
fn axes(tuning: &Tuning) -> [Axis; 2] {
    let steps = &tuning.curve.steps;
    let budgets: Vec<f64> = steps.iter().map(|step| step.point.budget.0 as f64).collect();
    let largest = budgets.last().copied().filter(|bytes| *bytes > 0.0);
    let largest = largest.unwrap_or((tuning.range.high.0 as f64).max(1.0));
    let least = budgets.iter().copied().find(|bytes| *bytes > 0.0).unwrap_or(largest / 2.0);
    let runs = tuning.measured.iter().flatten().map(|run| run.total_ms);
    let times: Vec<f64> = steps.iter().map(|step| step.point.ms).chain(runs).collect();
    let longest = times.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let shortest = times.iter().copied().fold(f64::INFINITY, f64::min).min(longest);
    let begins_at_zero = budgets.first() == Some(&0.0);
    let x = Axis::new(Unit::of_bytes(Bytes(largest as u64)), least, largest, begins_at_zero);
    [x, Axis::new(Unit::of_ms(longest), shortest, longest, true)]
}

/// The corners of the line: along each step, then down to the next; the last goes on to the end.
fn stairs(tuning: &Tuning, x: &Axis, y: &Axis) -> Vec<(f64, f64)> {
    let mut line: Vec<(f64, f64)> = Vec::new();
    for step in &tuning.curve.steps {
        let (at, ms) = (x.at(step.point.budget.0 as f64), y.at(step.point.ms));
        line.extend(line.last().map(|(_, before)| (at, *before)));
        line.push((at, ms));
    }
    line.extend(line.last().map(|(_, ms)| (x.ends()[1], *ms)));
    line
}

fn style(size: f64, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color)
}

fn title(area: &Area<'_>, tuning: &Tuning) -> DrawResult {
    let JobShape { width, height, batch, .. } = tuning.job;
    let is_demo = demo::is_it(&tuning.model);
    let model = if is_demo { demo::NAME.to_owned() } else { tuning.model.name() };
    let bold = ("sans-serif", TITLE_SIZE, FontStyle::Bold).into_font().color(&INK);
    area.draw(&Text::new(format!("{model} on {}", tuning.host), (24, 16), bold))?;
    let steps = tuning.job.steps_run();
    let below = format!("{width}x{height}, {steps} steps, batch {batch}");
    area.draw(&Text::new(below, (24, 46), style(TEXT_SIZE, FAINT)))?;
    if tuning.measured.iter().any(Option::is_some) {
        let (right, top) = (SIZE.0 as i32 - 190, 46);
        area.draw(&Text::new("predicted", (right, top), style(TEXT_SIZE, PREDICTED)))?;
        area.draw(&Cross::new((right + 92, top + 8), 5, MEASURED.stroke_width(2)))?;
        area.draw(&Text::new("measured", (right + 104, top), style(TEXT_SIZE, MEASURED)))?;
    }
    Ok(())
}

/// Budgets with which there is no plan.
fn too_small(area: &Area<'_>, chart: &Chart<'_, '_>, tuning: &Tuning, x: &Axis) -> DrawResult {
    let Some(first) = tuning.curve.steps.first().filter(|step| step.point.budget > Bytes::ZERO)
    else {
        return Ok(());
    };
    let (horizontal, vertical) = chart.plotting_area().get_pixel_range();
    let edge = chart.backend_coord(&(x.at(first.point.budget.0 as f64), 0.0)).0;
    let shade = [(horizontal.start, vertical.start), (edge, vertical.end)];
    area.draw(&Rectangle::new(shade, SHADE.filled()))?;
    let turned = style(TEXT_SIZE, FAINT).transform(FontTransform::Rotate270);
    let place = ((horizontal.start + edge) / 2 - 8, vertical.end - 12);
    // Where a range was asked for that begins with a plan, less was not looked at.
    let text = if tuning.is_least { "does not fit" } else { "not looked at" };
    area.draw(&Text::new(text, place, turned))?;
    Ok(())
}

/// Grid, ticks and what the axes are.
fn scales(
    area: &Area<'_>,
    chart: &Chart<'_, '_>,
    x: &Axis,
    y: &Axis,
    tuning: &Tuning,
) -> DrawResult {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let (horizontal, vertical) = chart.plotting_area().get_pixel_range();
    let text = |h, v| style(TEXT_SIZE, INK).pos(Pos::new(h, v));
    for (at, number) in x.ticks() {
        let at = chart.backend_coord(&(at, y.ends()[0])).0;
        let line = vec![(at, vertical.start), (at, vertical.end)];
        area.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
        let below = (at, vertical.end + 8);
        area.draw(&Text::new(number, below, text(HPos::Center, VPos::Top)))?;
    }
    for (at, number) in y.ticks() {
        let at = chart.backend_coord(&(x.ends()[0], at)).1;
        let line = vec![(horizontal.start, at), (horizontal.end, at)];
        area.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
        let before = (horizontal.start - 8, at);
        area.draw(&Text::new(number, before, text(HPos::Right, VPos::Center)))?;
    }
    let frame = vec![
        (horizontal.start, vertical.start),
        (horizontal.start, vertical.end),
        (horizontal.end, vertical.end),
    ];
    area.draw(&PathElement::new(frame, FAINT.stroke_width(1)))?;
    let below = ((horizontal.start + horizontal.end) / 2, vertical.end + 32);
    let budget = format!("budget of each device (--max-vram), {}", x.unit().name);
    area.draw(&Text::new(budget, below, text(HPos::Center, VPos::Top)))?;
    let what = match tuning.objective {
        Objective::Throughput => "next job on a warm executor",
        Objective::Latency | Objective::Memory => "cold start to picture",
    };
    let turned = text(HPos::Center, VPos::Top).transform(FontTransform::Rotate270);
    let time = format!("{what}, {}", y.unit().name);
    area.draw(&Text::new(time, (20, (vertical.start + vertical.end) / 2), turned))?;
    Ok(())
}

/// What was measured, each joined to what was predicted.
fn runs(chart: &mut Chart<'_, '_>, tuning: &Tuning, x: &Axis, y: &Axis) -> DrawResult {
    for (step, run) in tuning.curve.steps.iter().zip(&tuning.measured) {
        let Some(run) = run else { continue };
        let at = x.at(step.point.budget.0 as f64);
        let [predicted, measured] = [step.point.ms, run.total_ms].map(|ms| (at, y.at(ms)));
        let line = PathElement::new(vec![predicted, measured], MEASURED.stroke_width(1));
        chart.draw_series([line])?;
        chart.draw_series([Cross::new(measured, 5, MEASURED.stroke_width(2))])?;
    }
    Ok(())
}

/// Points and labels of the steps with a mark. Times are in the axis' unit.
fn marks(
    area: &Area<'_>,
    chart: &mut Chart<'_, '_>,
    tuning: &Tuning,
    x: &Axis,
    y: &Axis,
) -> DrawResult {
    let steps = tuning.curve.steps.iter().enumerate();
    let marked = steps.filter_map(|(index, step)| Some((step, tuning.mark(index)?)));
    let marked: Vec<_> = marked
        .map(|(step, mark)| {
            let at = (x.at(step.point.budget.0 as f64), y.at(step.point.ms));
            (step, mark, at)
        })
        .collect();
    let points = marked.iter().map(|(_, _, at)| chart.backend_coord(at)).collect();
    let line = stairs(tuning, x, y).iter().map(|at| chart.backend_coord(at)).collect();
    let (horizontal, vertical) = chart.plotting_area().get_pixel_range();
    let mut labels = Labels::new(horizontal, vertical, points, line);
    for (step, mark, at) in marked {
        let fill = if mark == Mark::Knee { PREDICTED } else { WHITE };
        chart.draw_series([Circle::new(at, label::MARKER, fill.filled())])?;
        chart.draw_series([Circle::new(at, label::MARKER, PREDICTED.stroke_width(2))])?;
        let budget = match step.point.budget {
            Bytes::ZERO => "no device".to_owned(),
            bytes => {
                let (number, unit) = as_cap(bytes);
                format!("{number} {unit}")
            }
        };
        let text = format!("{budget}: {}", y.unit().shown(step.point.ms));
        let label = labels.place(chart.backend_coord(&at), &text);
        if let Some(leader) = label.leader {
            area.draw(&PathElement::new(leader.to_vec(), FAINT.stroke_width(1)))?;
        }
        area.draw(&Text::new(text, label.at, style(TEXT_SIZE, INK)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::tuning;
    use crate::tune::Measured;

    /// The texts of an SVG document, which must be well-formed: each element closed, in the order
    /// of their opening.
    fn texts(svg: &str) -> Vec<String> {
        let mut open: Vec<&str> = Vec::new();
        let mut texts = Vec::new();
        let mut rest = svg.trim();
        while let Some(tag) = rest.strip_prefix('<') {
            let (tag, after) = tag.split_once('>').expect("a tag ends");
            let (text, more) = after.find('<').map_or((after, ""), |at| after.split_at(at));
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes are in pairs: {tag}");
            let escaped = ["&amp;", "&lt;", "&gt;"];
            let bare = escaped.iter().fold(text.to_owned(), |text, known| text.replace(known, ""));
            assert!(!bare.contains('&'), "{text}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "closed in order");
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().expect("a tag has a name"));
                if open.last() == Some(&"text") {
                    texts.push(text.trim().to_owned());
                }
            }
            rest = more;
        }
        assert!(open.is_empty() && rest.is_empty(), "left open: {open:?}, {rest}");
        texts
    }

    #[test]
    fn the_picture_is_well_formed_and_says_what_it_shows() {
        let mut tuning = tuning(&[(2, 100_000.0), (4, 30_000.0), (8, 28_000.0), (16, 20_000.0)]);
        tuning.host = "a <host> & more".to_owned();
        let plain = texts(&svg(&tuning).unwrap());
        for text in [
            "made-up on a &lt;host&gt; &amp; more",
            "1024x768, 28 steps, batch 1",
            "budget of each device (--max-vram), GiB",
            "cold start to picture, seconds",
            "2.00 GiB: 100 s",
            "4.00 GiB: 30.0 s",
            "16.0 GiB: 20.0 s",
            "does not fit",
        ] {
            assert!(plain.iter().any(|known| known == text), "no {text:?} in {plain:?}");
        }
        // A step that is no knee has no label; nothing was measured.
        assert!(!plain.iter().any(|text| text.starts_with("8.00 GiB") || text == "measured"));

        tuning.measured[1] = Some(Measured { total_ms: 31_000.0, denoise_step_ms: 900.0 });
        tuning.is_least = false;
        tuning.objective = Objective::Throughput;
        let measured = texts(&svg(&tuning).unwrap());
        for text in
            ["measured", "predicted", "not looked at", "next job on a warm executor, seconds"]
        {
            assert!(measured.iter().any(|known| known == text), "no {text:?} in {measured:?}");
        }
    }

    #[test]
    fn the_line_is_a_staircase() {
        let tuning = tuning(&[(1, 40_000.0), (4, 30_000.0), (16, 10_000.0)]);
        let [x, y] = axes(&tuning);
        let line = stairs(&tuning, &x, &y);
        assert_eq!(line.len(), 6);
        for pair in line.windows(2) {
            let ([(x1, y1), (x2, y2)], is_straight) = ([pair[0], pair[1]], 1e-12);
            assert!((x1 - x2).abs() < is_straight || (y1 - y2).abs() < is_straight, "{pair:?}");
            assert!(x1 <= x2 && y1 >= y2, "{pair:?}");
        }
    }

    #[test]
    fn curves_of_any_extent_can_be_drawn() {
        let curves: [&[(u64, f64)]; 4] =
            [&[(0, 5.0)], &[(7, 0.02)], &[(0, 1e7), (3, 2.0)], &[(1, 1e-3), (1 << 20, 1e-4)]];
        for steps in curves {
            assert!(!texts(&svg(&tuning(steps)).unwrap()).is_empty());
        }
    }
}
