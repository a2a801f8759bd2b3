//! A page in a real browser, for the tests of the crates that make pages. The variable `CHROMIUM`
//! names another browser than `chromium`.

use std::io::{ErrorKind, Write as _};
use std::process::Command;

/// What the browser shows of a page, up to its scripts, after `script`, which runs at its end; none
/// without a browser, which is said.
pub fn rendered(page: &str, script: &str) -> Option<String> {
    let browser = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    std::fs::write(&path, format!("{page}<script>{script}</script>")).unwrap();
    let output = Command::new(&browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
        .args(["--virtual-time-budget=30000", "--window-size=1000,1000", "--dump-dom"])
        .arg(format!("file://{}", path.display()))
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Not by `eprintln!`, which stays unseen while a test passes.
            let notice = format!("skipped: there is no browser {browser:?}; set CHROMIUM to name one\n");
            std::io::stderr().write_all(notice.as_bytes()).unwrap();
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "the browser failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).split("<script").next().map(str::to_owned)
}
