//! What shells complete, and the manual.

use std::process::Command;

use crate::support::{Home, golden};

#[test]
fn a_shell_completes_commands_and_flags() {
    let home = Home::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = home.run(&["completions", shell]);
        assert_eq!(ended.code, Some(0), "{shell}: {}", ended.stderr);
        let mut named = ["generate", "max-vram", "completions"].iter();
        assert!(named.all(|word| ended.stdout.contains(word)), "{shell}: {}", ended.stdout);
    }
    // As bash itself asks: the word so far, and the one before it.
    let script = home.run(&["completions", "bash"]).stdout;
    std::fs::write(home.path("berth.bash"), script).expect("a file");
    for (words, expected) in [
        ("berth gen", "generate"),
        ("berth generate --max-v", "--max-vram"),
        ("berth com", "completions"),
    ] {
        let last = words.split(' ').count() - 1;
        let ask = format!(
            ". ./berth.bash; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _berth berth \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; echo \"${{COMPREPLY[*]}}\""
        );
        let output = Command::new("bash")
            .args(["--norc", "-c", &ask])
            .current_dir(home.path(""))
            .output()
            .expect("bash runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{words}");
    }
    golden::run("completions-unknown-shell", &home, &["completions", "tcsh"]);
}

#[test]
fn the_manual_has_a_page_of_each_command_that_is_shown() {
    let home = Home::new();
    let help = home.run(&["--help"]).stdout;
    std::fs::create_dir(home.path("man")).expect("a directory");
    let ended = home.run(&["man", "--output", "man"]);
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (Some(0), "", ""));
    let mut pages: Vec<String> = std::fs::read_dir(home.path("man"))
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    pages.sort();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let mut expected: Vec<String> =
        commands.filter(|name| *name != "help").map(|name| format!("berth-{name}.1")).collect();
    expected.push("berth.1".to_owned());
    expected.sort();
    assert_eq!(pages, expected);
    assert!(expected.contains(&"berth-generate.1".to_owned()) && !help.contains("  man "));
    let page = std::fs::read_to_string(home.path("man/berth-generate.1")).expect("a page");
    assert!(page.contains("\\-\\-prompt") && page.contains(".SH OPTIONS"), "{page}");
    golden::run("man-no-directory", &home, &["man", "--output", "nowhere"]);
}
