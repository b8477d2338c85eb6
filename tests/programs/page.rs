//! Tests of the page that `urxe decode --html` writes, in headless Chromium, which chromedriver controls (W3C WebDriver).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Time within which a step must succeed, also on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A browser with one page.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(page: &Path) -> Browser {
        let mut driver = Command::new("chromedriver");
        let driver = driver.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut driver = driver.unwrap_or_else(|e| panic!("chromedriver: {e} (tests/install programs)"));
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map(Result::unwrap);
        let started = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Browser {
            driver,
            port: started.expect("a line with the port of chromedriver"),
            session: String::new(),
            _profile: profile,
        };
        let mut args = vec![format!("--user-data-dir={}", browser._profile.path().display())];
        let flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
                     --disable-component-update --disable-sync --disable-quic --disable-dev-shm-usage --window-size=1400,1000";
        args.extend(flags.split_whitespace().map(str::to_owned));
        let options =
            json!({ "goog:chromeOptions": { "args": args }, "goog:loggingPrefs": { "browser": "ALL" } });
        let session =
            browser.request("POST", "/session", json!({ "capabilities": { "alwaysMatch": options } }));
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser.command("url", json!({ "url": format!("file://{}", page.display()) }));
        browser.wait_for("return document.documentElement.dataset.ready === 'true'");
        browser
    }

    fn request(&self, method: &str, path: &str, body: Value) -> Value {
        let value = self.exchange(method, path, &body.to_string()).unwrap();
        assert!(value["value"]["error"].is_null(), "{method} {path}: {value}");
        value["value"].clone()
    }

    /// Sends a request, and returns the body of the response.
    fn exchange(&self, method: &str, path: &str, body: &str) -> io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let len = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}")?;
        let mut lines = BufReader::new(stream);
        let mut len = 0;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    len = value.trim().parse().unwrap()
                }
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; len];
        lines.read_exact(&mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }

    fn command(&self, name: &str, body: Value) -> Value {
        self.request("POST", &format!("{}/{name}", self.session), body)
    }

    /// Runs a script, and returns its result.
    fn run(&self, script: &str) -> Value {
        self.command("execute/sync", json!({ "script": script, "args": [] }))
    }

    fn wait_for(&self, condition: &str) {
        let start = Instant::now();
        while self.run(condition) != true {
            assert!(start.elapsed() < TIMEOUT, "{condition}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves the mouse to each place, and holds the button from the first to the last if there are several.
    fn mouse(&self, places: &[(f64, f64)]) {
        let to = |(x, y): (f64, f64)| json!({ "type": "pointerMove", "duration": 50, "x": x as i64, "y": y as i64 });
        let mut actions = vec![to(places[0])];
        if places.len() > 1 {
            actions.push(json!({ "type": "pointerDown", "button": 0 }));
            actions.extend(places[1..].iter().map(|place| to(*place)));
            actions.push(json!({ "type": "pointerUp", "button": 0 }));
        }
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.command("actions", json!({ "actions": [mouse] }));
    }

    /// Returns the place of a packet on the screen.
    fn place(&self, packet: u64) -> (f64, f64) {
        let place = self.run(&format!("return window.urxe.place({packet})"));
        (place["x"].as_f64().unwrap(), place["y"].as_f64().unwrap())
    }

    /// Returns the visible times in seconds.
    fn range(&self) -> (f64, f64) {
        let range = self.run("return window.urxe.range()");
        (range[0].as_f64().unwrap(), range[1].as_f64().unwrap())
    }

    /// Returns errors and warnings, among them attempts to load something from the network.
    fn log(&self) -> Value {
        self.command("se/log", json!({ "type": "browser" }))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser.
        let _ = self.exchange("DELETE", &self.session, "");
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Writes the page of captures of the corpus.
fn page(captures: &[&str], path: &Path) {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../pcaps/broken");
    let captures = captures.iter().map(|name| corpus.join(name));
    let mut decode = Command::new(env!("CARGO_BIN_EXE_urxe"));
    let output = decode.args(["decode", "--html"]).arg(path).args(captures).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn page_shows_the_fields_of_a_packet_zooms_and_goes_to_the_packets_of_a_finding() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    page(&["request-lost.client.pcapng", "request-lost.server.pcapng"], &path);
    let browser = Browser::open(&path);
    assert_eq!(browser.run("return document.querySelectorAll('#findings button').length"), 1);
    assert_eq!(browser.run("return window.urxe.packets()"), 27);

    // Packet 8 of the client is lost, and packet 20 is a retransmission.
    let tip = |packet| {
        browser.mouse(&[browser.place(packet)]);
        browser.wait_for("return !document.getElementById('tip').hidden");
        browser.run("return document.getElementById('tip').textContent").as_str().unwrap().to_owned()
    };
    let (lost, again) = (tip(8), tip(20));
    assert!(lost.starts_with("packet 8, 50.4 µs\nRC RDMA WRITE Middle: request\n"), "{lost}");
    assert!(lost.contains("\nPSN +6, 0x61346d\n256 bytes of payload"), "{lost}");
    assert!(again.contains("RC RDMA WRITE Middle: retransmission\n"), "{again}");

    // A drag zooms to the times that it covers, and a double click shows all.
    browser.run("window.urxe.fit()");
    let all = browser.range();
    let (from, to) = (browser.place(4), browser.place(16));
    browser.mouse(&[(from.0, from.1 - 30.0), (to.0 - 20.0, to.1), to]);
    let zoomed = browser.range();
    assert!(zoomed.0 > all.0 && zoomed.1 < all.1 && zoomed.0 < zoomed.1, "{all:?} {zoomed:?}");
    browser.run("window.urxe.fit()");
    assert!(browser.range().1 > zoomed.1);

    // A finding is shown with its packets.
    browser.run("document.querySelector('#findings button').click()");
    let (from, to) = browser.range();
    assert!(from < 50.4e-6 && to > 60.1e-6, "{from} {to}");
    assert_eq!(browser.run("return document.querySelectorAll('#findings [aria-current]').length"), 1);

    // The other colours.
    let back = "return getComputedStyle(document.body).backgroundColor";
    let before = browser.run(back);
    browser.run("document.getElementById('theme').click()");
    assert_ne!(browser.run(back), before);
    assert_eq!(browser.log(), json!([]), "errors in the page");
}
