//! What a first user meets, through the real program: what a shell completes, manual pages,
//! progress on a terminal and off one, previews, and what is said of models that are not run yet.

mod families;
mod help;
mod previews;
mod progress;

/// A device so far behind its link that each step of the demo model, whose weights stream over it,
/// takes this long at least: about 1.2 MB at this rate.
const SLOW: &str = "name = \"slow\"\n[host]\ncompute = false\n[[device]]\nkind = \"virtual\"\n\
                    total = \"64MiB\"\nlink = \"3MiB/s\"\n";

/// Arguments by which the demo model's job lasts some seconds on any machine.
const LASTING: [&str; 6] = [
    "--host",
    "./slow.toml",
    "--params-backend",
    "all=cpu",
    "--prompt",
    "a large red circle on a white background",
];

/// A home with the slow device's profile.
fn slow_home() -> crate::support::Home {
    let home = crate::support::Home::new();
    std::fs::write(home.path("slow.toml"), SLOW).expect("a profile");
    home
}
