//! Pictures of the demo model: they show what was asked for, their files say how they were made,
//! and the same request gives the same picture.
//!
//! Colours and positions are read from the pixels: the median colour of the border is the
//! background's, the median colour of what differs from it the shape's, its centre falls into a
//! third of each side.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde_json::Value;

use crate::support::Home;

/// The colours that the demo model was taught, in sRGB.
const PALETTE: [(&str, [u8; 3]); 10] = [
    ("red", [220, 38, 38]),
    ("green", [34, 160, 72]),
    ("blue", [37, 84, 220]),
    ("yellow", [250, 215, 45]),
    ("orange", [245, 135, 25]),
    ("purple", [135, 55, 185]),
    ("pink", [248, 150, 195]),
    ("cyan", [60, 205, 220]),
    ("white", [250, 250, 250]),
    ("black", [16, 16, 16]),
];

/// Thirds of a side, from the left and from the top.
const COLUMNS: [&str; 3] = ["left", "centre", "right"];
const ROWS: [&str; 3] = ["top", "middle", "bottom"];

/// Prompts of one shape each: its colour, its background, its column and row.
#[rustfmt::skip]
const PROMPTS: [(&str, [&str; 4]); 17] = [
    ("a large red circle on a white background", ["red", "white", "centre", "middle"]),
    ("a small blue star on the left of a green background", ["blue", "green", "left", "middle"]),
    ("a large pink heart on a black background", ["pink", "black", "centre", "middle"]),
    ("a green triangle at the top of a yellow background", ["green", "yellow", "centre", "top"]),
    ("a small white ring in the bottom right corner of a red background", ["white", "red", "right", "bottom"]),
    ("a large orange diamond on a purple background", ["orange", "purple", "centre", "middle"]),
    ("a cyan cross on the right, a black background", ["cyan", "black", "right", "middle"]),
    ("a large yellow star on a blue background", ["yellow", "blue", "centre", "middle"]),
    ("a purple square in the top left of a pink background", ["purple", "pink", "left", "top"]),
    ("a huge green ring on an orange background", ["green", "orange", "centre", "middle"]),
    ("a big white heart on a cyan background", ["white", "cyan", "centre", "middle"]),
    ("A picture of a red square on a green background.", ["red", "green", "centre", "middle"]),
    ("a blue triangle on the left on an orange background", ["blue", "orange", "left", "middle"]),
    ("a yellow circle in the top right corner, a black background", ["yellow", "black", "right", "top"]),
    ("a large black cross on a yellow background", ["black", "yellow", "centre", "middle"]),
    ("a little red diamond in the center of a blue background", ["red", "blue", "centre", "middle"]),
    ("an orange star at the bottom left of a white background", ["orange", "white", "left", "bottom"]),
];

/// A decoded file.
#[derive(Debug, PartialEq)]
struct Png {
    width: usize,
    height: usize,
    /// Rows from the top, RGB.
    pixels: Vec<[u8; 3]>,
    /// The `parameters` text of a tEXt chunk.
    text: Option<String>,
    /// The same of an iTXt chunk.
    unicode_text: Option<String>,
}

impl Png {
    fn read(path: &Path) -> Png {
        let file = BufReader::new(File::open(path).unwrap_or_else(|e| panic!("{path:?}: {e}")));
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut bytes).unwrap();
        let kind = (frame.color_type, frame.bit_depth);
        assert_eq!(kind, (png::ColorType::Rgb, png::BitDepth::Eight));
        let info = reader.info();
        let latin = info.uncompressed_latin1_text.iter();
        let unicode = info.utf8_text.iter();
        Png {
            width: frame.width as usize,
            height: frame.height as usize,
            pixels: bytes.as_chunks::<3>().0.to_vec(),
            text: latin.filter(|c| c.keyword == "parameters").map(|c| c.text.clone()).next(),
            unicode_text: unicode
                .filter(|chunk| chunk.keyword == "parameters")
                .map(|chunk| chunk.get_text().unwrap())
                .next(),
        }
    }

    /// What the picture shows: colour, background, column, row.
    fn content(&self) -> [&'static str; 4] {
        let (width, height) = (self.width, self.height);
        let all = || (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let at = |(x, y): (usize, usize)| self.pixels[y * width + x];
        let on_border = |&(x, y): &(usize, usize)| {
            [x, width - 1 - x, y, height - 1 - y].into_iter().any(|far| far < BORDER_PIXELS)
        };
        let background = median(all().filter(on_border).map(at));
        // Edges are blends of both colours, so the shape's is read where the picture differs most.
        let most = all().map(|place| distance(at(place), background)).max().expect("pixels");
        assert!(most >= CONTRAST_MIN, "a contrast of {most}: the picture is flat");
        let far = |&place: &(usize, usize)| 2 * distance(at(place), background) > most;
        let colour = median(all().filter(far).map(at));
        let inside =
            |&place: &(usize, usize)| distance(at(place), colour) < distance(at(place), background);
        let shape: Vec<_> = all().filter(inside).collect();
        assert!(shape.len() >= SHAPE_PIXELS_MIN, "{} pixels are no shape", shape.len());
        let mean = |sum: usize| sum as f64 / shape.len() as f64;
        let third = |mean: f64, side: usize| (3.0 * (mean + 0.5) / side as f64) as usize;
        let column = third(mean(shape.iter().map(|(x, _)| x).sum()), width);
        let row = third(mean(shape.iter().map(|(_, y)| y).sum()), height);
        [named(colour), named(background), COLUMNS[column], ROWS[row]]
    }
}

/// Width of the frame that shows the background alone.
const BORDER_PIXELS: usize = 2;

/// Least squared distance between background and shape: half of the least one between two colours
/// of the palette, those of orange and yellow.
const CONTRAST_MIN: u32 = 6825 / 2;

/// Fewest pixels of a shape; the smallest ones have a radius of some 7 pixels.
const SHAPE_PIXELS_MIN: usize = 20;

fn distance(a: [u8; 3], b: [u8; 3]) -> u32 {
    a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
}

/// The middle value of each channel.
fn median(colours: impl Iterator<Item = [u8; 3]>) -> [u8; 3] {
    let colours: Vec<[u8; 3]> = colours.collect();
    assert!(!colours.is_empty(), "the picture has one colour only");
    [0, 1, 2].map(|channel| {
        let mut values: Vec<u8> = colours.iter().map(|colour| colour[channel]).collect();
        values.sort_unstable();
        values[values.len() / 2]
    })
}

/// The nearest colour of the palette.
fn named(colour: [u8; 3]) -> &'static str {
    let nearest = PALETTE.iter().min_by_key(|(_, known)| distance(*known, colour));
    nearest.expect("the palette has colours").0
}

/// A picture by the defaults, from seed 0 where no other is named.
fn picture(home: &Home, prompt: &str, more: &[&str]) -> Png {
    let seed: &[&str] = if more.contains(&"--seed") { &[] } else { &["--seed", "0"] };
    let fixed = ["generate", "--prompt", prompt, "--output", "picture.png"];
    let arguments = [&fixed[..], seed, more].concat();
    let ended = home.run(&arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    Png::read(&home.path("picture.png"))
}

fn assert_shown(home: &Home, prompts: &[(&str, [&str; 4])]) {
    for (prompt, content) in prompts {
        let picture = picture(home, prompt, &[]);
        assert_eq!((picture.width, picture.height), (64, 64));
        assert_eq!(picture.content(), *content, "{prompt}");
    }
}

#[test]
fn the_readmes_first_command_makes_its_picture() {
    let readme = std::fs::read_to_string(crate::support::root().join("README.md")).unwrap();
    let command = readme.lines().find(|line| line.contains("generate --prompt")).unwrap();
    let arguments = command.strip_prefix("cargo run --release -- ").unwrap();
    let mut arguments: Vec<&str> =
        arguments.split('"').enumerate().fold(Vec::new(), |mut all, part| {
            match part {
                (at, quoted) if at % 2 == 1 => all.push(quoted),
                (_, plain) => all.extend(plain.split_whitespace()),
            }
            all
        });
    // Any seed shows it; the test has always the same one.
    arguments.extend(["--seed", "0"]);
    let home = Home::new();
    let ended = home.run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(arguments[2], PROMPTS[0].0);
    assert_eq!(Png::read(&home.path("circle.png")).content(), PROMPTS[0].1);
}

#[test]
fn the_first_half_of_the_prompts_is_shown() {
    assert_shown(&Home::new(), &PROMPTS[..PROMPTS.len() / 2]);
}

#[test]
fn the_second_half_of_the_prompts_is_shown() {
    assert_shown(&Home::new(), &PROMPTS[PROMPTS.len() / 2..]);
}

#[test]
fn other_seeds_show_the_same_prompt_differently() {
    let home = Home::new();
    let (prompt, content) = PROMPTS[8];
    let first = picture(&home, prompt, &["--seed", "1"]);
    let second = picture(&home, prompt, &["--seed", "2"]);
    assert_eq!((first.content(), second.content()), (content, content));
    assert!(first.pixels != second.pixels);
}

#[test]
fn the_checker_tells_a_wrong_colour_background_and_position() {
    let home = Home::new();
    let content = |prompt| picture(&home, prompt, &[]).content();
    let asked = ["blue", "green", "left", "middle"];
    for (prompt, wrong) in [
        ("a small red star on the left of a green background", 0),
        ("a small blue star on the left of a white background", 1),
        ("a small blue star on the right of a green background", 2),
        ("a small blue star in the bottom left corner of a green background", 3),
    ] {
        let shown = content(prompt);
        let differing: Vec<usize> = (0..4).filter(|&at| shown[at] != asked[at]).collect();
        assert_eq!(differing, [wrong], "{prompt}: {shown:?}");
    }
}

#[test]
fn the_file_says_how_the_picture_was_made() {
    let home = Home::new();
    let (prompt, _) = PROMPTS[0];
    let made = picture(&home, prompt, &["--seed", "7", "--steps", "3", "--width", "96"]);
    assert_eq!((made.width, made.height), (96, 64));
    let text = made.text.expect("a tEXt chunk");
    assert_eq!(text.lines().next(), Some(prompt));
    for part in ["Steps: 3,", "Seed: 7,", "Size: 96x64,"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert_eq!(made.unicode_text, None);

    let prompt = "ein großer roter Kreis, 赤い丸";
    let made = picture(&home, prompt, &["--seed", "4294967297", "--steps", "1"]);
    let text = made.unicode_text.expect("an iTXt chunk");
    assert_eq!(text.lines().next(), Some(prompt));
    assert!(text.contains("Seed: 4294967297,"), "{text}");
    assert_eq!(made.text, None);
}

#[test]
fn a_batch_is_numbered_and_equal_to_single_runs() {
    let home = Home::new();
    let (prompt, content) = PROMPTS[6];
    let batch = ["generate", "--prompt", prompt, "--batch", "3", "--seed", "11"];
    let ended = home.run(&[&batch[..], &["--output", "batch.png"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let pngs = |name: &String| name.ends_with(".png");
    let files: Vec<String> = home.files().into_iter().filter(pngs).collect();
    assert_eq!(files, ["batch-1.png", "batch-2.png", "batch-3.png"]);
    for (file, seed) in files.iter().zip(["11", "12", "13"]) {
        let of_batch = Png::read(&home.path(file));
        let text = of_batch.text.as_deref().expect("a tEXt chunk");
        assert!(text.contains(&format!("Seed: {seed},")), "{file}: {text}");
        let alone = picture(&home, prompt, &["--seed", seed]);
        assert_eq!(of_batch.content(), content, "{file}");
        let place = format!("Batch size: 3, Batch pos: {}, ", of_batch_position(file));
        assert_eq!(text.replace(&place, ""), alone.text.unwrap(), "{file}");
        let pairs = of_batch.pixels.as_flattened().iter().zip(alone.pixels.as_flattened());
        let off = pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(off <= 1, "{file} is {off} levels off the picture made alone");
    }
}

/// The place of `batch-1.png` in its batch, from 0, as other programs count.
fn of_batch_position(file: &str) -> usize {
    let number = file.trim_start_matches("batch-").trim_end_matches(".png");
    number.parse::<usize>().expect("it is numbered") - 1
}

#[test]
fn the_same_seed_gives_identical_files_on_every_device() {
    let home = Home::new();
    let run = |host: &[&str], output: &str| {
        let arguments = ["generate", "--prompt", PROMPTS[5].0, "--seed", "3", "--output", output];
        let document = home.json(&[&arguments[..], &["--json"], host].concat());
        let devices = document["plan"]["components"][2]["devices"].clone();
        (devices, std::fs::read(home.path(output)).unwrap())
    };
    let profile = "name = \"host\"\n[host]\nmemory = \"8GiB\"\navailable = \"4GiB\"\n";
    std::fs::write(home.path("host.toml"), profile).unwrap();
    let (place, first) = run(&["--host", "./host.toml"], "first.png");
    assert_eq!(place, Value::from(vec!["host"]));
    let (_, again) = run(&["--host", "./host.toml"], "again.png");
    assert!(first == again, "the second run differs");
    let (place, on_device) = run(&["--host", "virtual-1x64m"], "device.png");
    assert_eq!(place, Value::from(vec!["virtual0"]));
    assert!(first == on_device, "host and virtual device differ");
}

/// Whether a document has a field of this kind; the path's parts are separated by dots.
fn assert_field(document: &Value, path: &str, is: fn(&Value) -> bool) {
    let field = path.split('.').try_fold(document, |value, part| match part.parse::<usize>() {
        Ok(index) => value.get(index),
        Err(_) => value.get(part),
    });
    assert!(field.is_some_and(is), "{path}: {field:?}");
}

#[test]
fn the_json_document_has_its_promised_fields() {
    let home = Home::new();
    let arguments = ["generate", "--prompt", PROMPTS[0].0, "--host", "virtual-2x2g", "--json"];
    let document = home.json(&arguments);
    for path in [
        "plan.job.width",
        "plan.job.height",
        "plan.job.steps",
        "plan.job.batch",
        "plan.generation",
        "plan.components.0.segments.0.weights_bytes",
        "plan.components.0.weights_bytes",
        "plan.devices.1.total_bytes",
        "plan.devices.1.free_bytes",
        "plan.devices.1.budget_bytes",
        "plan.devices.0.overhead_bytes",
        "plan.devices.0.peak_bytes",
        "plan.devices.0.phases.2.weights_bytes",
        "plan.devices.0.phases.2.compute_bytes",
        "plan.devices.0.phases.2.staging_bytes",
        "plan.devices.0.phases.2.peak_bytes",
        "plan.host.budget_bytes",
        "plan.host.peak_bytes",
        "plan.host.pinned_bytes",
        "usage.devices.0.phases.0.predicted_peak_bytes",
        "usage.devices.0.phases.0.measured_peak_bytes",
    ] {
        assert_field(&document, path, Value::is_u64);
    }
    for path in [
        "plan.model",
        "plan.family",
        "plan.components.0.name",
        "plan.components.0.placement",
        "plan.components.0.devices.0",
        "plan.components.0.residency",
        "plan.components.0.reason",
        "plan.components.0.segments.0.name",
        "plan.components.0.segments.0.device",
        "plan.components.0.segments.0.residency",
        "plan.devices.0.id",
        "plan.devices.0.overhead_source",
        "plan.devices.0.phases.1.phase",
        "plan.rejected.0.placement",
        "plan.rejected.0.because",
        "usage.devices.0.id",
        "usage.devices.0.phases.0.phase",
    ] {
        assert_field(&document, path, Value::is_string);
    }
    for group in ["plan.predicted_ms", "usage.measured_ms"] {
        for time in ["load", "condition", "denoise_step", "decode", "total"] {
            assert_field(&document, &format!("{group}.{time}"), Value::is_f64);
        }
    }
    assert!(document["plan"].as_object().unwrap().contains_key("vae_tile"));
    assert_eq!(document["plan"]["schema"], 1);
    assert_eq!(document["plan"]["feasible"], true);
    assert_eq!(document["attempts"], 1);
    assert_eq!(document["images"], Value::from(vec!["berth.png"]));
    assert!(home.path("berth.png").is_file());
}

#[test]
fn standard_output_holds_data_only_and_standard_error_nothing() {
    let home = Home::new();
    let arguments = ["generate", "--prompt", PROMPTS[0].0, "--steps", "2"];
    let plain = home.run(&arguments);
    assert_eq!((plain.code, plain.stderr.as_str()), (Some(0), ""));
    assert_eq!(plain.stdout.lines().count(), 1, "{}", plain.stdout);
    assert!(plain.stdout.starts_with("berth.png: 64x64, 2 steps in "), "{}", plain.stdout);
    let json = home.run(&[&arguments[..], &["--json"]].concat());
    assert_eq!((json.code, json.stderr.as_str()), (Some(0), ""));
    assert!(json.json().is_object());
    assert!(!json.stdout.contains('\u{1b}'), "escape sequences in {}", json.stdout);
}

/// Mean difference of two pictures' levels.
fn mean_difference(a: &Png, b: &Png) -> f64 {
    let pairs = a.pixels.as_flattened().iter().zip(b.pixels.as_flattened());
    pairs.map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / (3 * a.pixels.len()) as f64
}

/// Leaves a picture of the first prompt in `start.png`.
fn start(home: &Home) -> Png {
    let start = picture(home, PROMPTS[0].0, &[]);
    std::fs::rename(home.path("picture.png"), home.path("start.png")).unwrap();
    start
}

#[test]
fn a_given_picture_stays_near_at_low_strength_and_is_painted_over_at_full() {
    let home = Home::new();
    let (prompt, content) = PROMPTS[0];
    let start = start(&home);
    assert_eq!(start.content(), content);
    let (other, other_content) = PROMPTS[7];
    let changed = |strength: &str| {
        let more = ["--init-image", "start.png", "--strength", strength, "--seed", "9"];
        picture(&home, other, &more)
    };
    // A tenth of the steps moves hardly anything, whatever the prompt asks for.
    assert_eq!(changed("0.1").content(), content);
    let full = changed("1");
    assert_eq!(full.content(), other_content);
    let [near, half, far] = ["0.3", "0.6", "1"].map(|s| mean_difference(&changed(s), &start));
    assert!(2.0 * near < half && half < far, "{near}, {half}, {far} levels from the start");
    // The same prompt has nothing to change.
    let more = ["--init-image", "start.png", "--strength", "0.3", "--seed", "9"];
    let same = picture(&home, prompt, &more);
    let off = mean_difference(&same, &start);
    assert!(off < near / 4.0, "{off} levels from the start with its own prompt");
    let text = same.text.expect("a tEXt chunk");
    assert!(text.contains("Denoising strength: 0.3,"), "{text}");
}

#[test]
fn a_given_picture_says_the_size_and_is_brought_to_one() {
    let home = Home::new();
    let source = crate::support::fixture("pictures/turned.jpg");
    let source = source.to_str().unwrap();
    let shape = |more: &[&str]| {
        let started = ["plan", "--dry-run", "--json", "--init-image", source];
        let job = home.json(&[&started[..], more].concat())["job"].clone();
        (job["width"].as_u64().unwrap(), job["height"].as_u64().unwrap())
    };
    // 24 × 16 pixels once it is turned, to multiples of 16.
    assert_eq!(shape(&[]), (32, 16));
    assert_eq!(shape(&["--height", "64"]), (96, 64));
    assert_eq!(shape(&["--width", "96", "--height", "96"]), (96, 96));
    let steps = ["--width", "64", "--height", "64", "--steps", "2", "--strength", "0.5"];
    let more = [&["--init-image", source], &steps[..]].concat();
    let made = picture(&home, PROMPTS[0].0, &more);
    assert_eq!((made.width, made.height), (64, 64));
}

#[test]
fn a_batch_from_one_picture_is_what_single_runs_make_of_it() {
    let home = Home::new();
    let (prompt, _) = PROMPTS[1];
    start(&home);
    let started = ["--init-image", "start.png", "--strength", "0.7", "--steps", "4"];
    let batch = ["generate", "--prompt", prompt, "--seed", "5", "--batch", "2"];
    let ended = home.run(&[&batch[..], &["--output", "batch.png"], &started].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for (file, seed) in [("batch-1.png", "5"), ("batch-2.png", "6")] {
        let alone = picture(&home, prompt, &[&["--seed", seed], &started[..]].concat());
        let of_batch = Png::read(&home.path(file));
        let pairs = of_batch.pixels.as_flattened().iter().zip(alone.pixels.as_flattened());
        let off = pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(off <= 1, "{file} is {off} levels off the picture made alone");
    }
}
