//! x

mod support;

#[test]
fn starts() {
    assert_eq!(support::Home::new().run(&["--version"]).code, Some(0));
}
