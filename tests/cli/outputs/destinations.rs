//! Files: behind links, with the permissions that they had, and never half-written.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::{PNG, generated, made};
use crate::support::Home;

#[test]
fn a_link_stays_and_its_file_is_replaced() {
    let home = Home::new();
    fs::create_dir(home.path("away")).unwrap();
    fs::write(home.path("away/old.png"), "old").unwrap();
    symlink("away/old.png", home.path("one")).unwrap();
    symlink("one", home.path("link.png")).unwrap();
    symlink("away/new.png", home.path("dangling.png")).unwrap();
    for (link, file) in [("link.png", "away/old.png"), ("dangling.png", "away/new.png")] {
        generated(&home, &[link]);
        assert!(home.path(link).is_symlink(), "{link} is still a link");
        assert!(fs::read(home.path(file)).unwrap().starts_with(PNG), "{file} is the picture");
    }
    assert_eq!(made(&home), ["away", "dangling.png", "link.png", "one"]);
    assert_eq!(fs::read_dir(home.path("away")).unwrap().count(), 2);
}

#[test]
fn links_are_followed_by_every_command() {
    let home = Home::new();
    let names = ["plan.toml", "host.toml", "curve.svg", "tensors.safetensors"];
    for name in names {
        symlink(format!("real-{name}"), home.path(name)).unwrap();
    }
    generated(&home, &["picture.png", "--dump-tensors", "tensors.safetensors"]);
    for arguments in [
        &["plan", "--dry-run", "--output", "plan.toml"][..],
        &["devices", "--profile", "--output", "host.toml"],
        &["tune", "--points", "2", "--host", "virtual-2x2g", "--plot", "curve.svg"],
    ] {
        let ended = home.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    }
    for name in names {
        assert!(home.path(name).is_symlink(), "{name} is still a link");
        assert!(fs::metadata(home.path(&format!("real-{name}"))).unwrap().is_file(), "{name}");
    }
}

#[test]
fn an_existing_file_keeps_its_permissions() {
    let home = Home::new();
    fs::write(home.path("picture.png"), "old").unwrap();
    for mode in [0o600, 0o664] {
        fs::set_permissions(home.path("picture.png"), Permissions::from_mode(mode)).unwrap();
        let before = fs::metadata(home.path("picture.png")).unwrap();
        generated(&home, &["picture.png"]);
        let after = fs::metadata(home.path("picture.png")).unwrap();
        assert_eq!(after.mode(), before.mode());
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert!(fs::read(home.path("picture.png")).unwrap().starts_with(PNG));
    }
    // Only root can give a file away, and must find it so.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(home.path("picture.png"), Some(12_345), Some(54_321)).unwrap();
        generated(&home, &["picture.png"]);
        let after = fs::metadata(home.path("picture.png")).unwrap();
        assert_eq!((after.uid(), after.gid(), after.mode() & 0o7777), (12_345, 54_321, 0o664));
    }
}
