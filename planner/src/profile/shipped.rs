//! The profiles that the binary carries: the files of `profiles/`, by their names.

/// Name and text, by name.
const PROFILES: [(&str, &str); 12] = [
    ("2x-rtx-3090-24g", include_str!("../../../profiles/2x-rtx-3090-24g.toml")),
    ("4x-rtx-a4000-16g", include_str!("../../../profiles/4x-rtx-a4000-16g.toml")),
    ("8x-h100-80g", include_str!("../../../profiles/8x-h100-80g.toml")),
    ("integrated-only", include_str!("../../../profiles/integrated-only.toml")),
    ("rtx-3060-laptop-6g", include_str!("../../../profiles/rtx-3060-laptop-6g.toml")),
    ("rtx-4060-8g", include_str!("../../../profiles/rtx-4060-8g.toml")),
    ("rtx-4090-24g", include_str!("../../../profiles/rtx-4090-24g.toml")),
    (
        "rtx-5060ti-16g-rtx-3080-10g",
        include_str!("../../../profiles/rtx-5060ti-16g-rtx-3080-10g.toml"),
    ),
    ("this-machine", include_str!("../../../profiles/this-machine.toml")),
    ("two-on-one-gpu", include_str!("../../../profiles/two-on-one-gpu.toml")),
    ("virtual-1x64m", include_str!("../../../profiles/virtual-1x64m.toml")),
    ("virtual-2x2g", include_str!("../../../profiles/virtual-2x2g.toml")),
];

/// The names of the shipped profiles, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    PROFILES.iter().map(|(name, _)| *name).collect()
}

/// The text of the shipped profile `name`.
pub fn text(name: &str) -> Option<&'static str> {
    PROFILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
