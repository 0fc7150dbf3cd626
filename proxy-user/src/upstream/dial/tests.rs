use super::*;
use tokio::net::TcpListener;

/// A port where nobody listens. Below the ephemeral range nobody else takes it meanwhile, but any will do here.
async fn dead() -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    endpoint(&listener)
}

fn endpoint(listener: &TcpListener) -> Endpoint {
    let address = listener.local_addr().unwrap();
    Endpoint::new(address.ip().to_string(), address.port())
}

/// A listener whose backlog is full: the kernel drops further SYNs, so that a connect hears nothing at all.
struct BlackHole {
    at: Endpoint,
    _listener: socket2::Socket,
    _filling: Vec<socket2::Socket>,
}

impl BlackHole {
    fn new() -> Self {
        use socket2::{Domain, Socket, Type};
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let filling = (0..4)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&address);
                socket
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        let at = address.as_socket().unwrap();
        Self { at: Endpoint::new(at.ip().to_string(), at.port()), _listener: listener, _filling: filling }
    }
}

const LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_first_candidate_that_answers_is_used_with_nodelay_and_keepalive() {
    let (one, two) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (stream, used) = dial(&[endpoint(&one), endpoint(&two)], LONG, LONG, None).await.unwrap();
    assert_eq!(used, endpoint(&one));
    assert!(stream.nodelay().unwrap());
    assert!(SockRef::from(&stream).keepalive().unwrap());
}

#[tokio::test]
async fn a_refusal_moves_on_at_once() {
    let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let began = Instant::now();
    let (_, used) = dial(&[dead().await, dead().await, endpoint(&live)], LONG, LONG, None).await.unwrap();
    assert_eq!(used, endpoint(&live));
    assert!(began.elapsed() < STAGGER, "took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_black_hole_costs_one_stagger() {
    let hole = BlackHole::new();
    let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let began = Instant::now();
    let (_, used) = dial(&[hole.at.clone(), endpoint(&live)], LONG, LONG, None).await.unwrap();
    assert_eq!(used, endpoint(&live));
    assert!((STAGGER..STAGGER * 3).contains(&began.elapsed()), "took {:?}", began.elapsed());
}

#[tokio::test]
async fn when_all_fail_each_attempt_is_named_with_its_reason() {
    let (hole, gone) = (BlackHole::new(), dead().await);
    let nowhere = Endpoint::new("name.invalid", 9092);
    let error = dial(&[gone.clone(), nowhere.clone(), hole.at.clone()], Duration::from_millis(300), LONG, None).await;
    let error = error.unwrap_err();
    let DialError::Failed(attempts) = &error else { panic!("{error}") };
    let of = |e: &Endpoint| attempts.iter().find(|a| a.endpoint == *e).map(|a| &a.why);
    assert!(matches!(of(&gone), Some(AttemptError::Connect(_, e)) if e.kind() == io::ErrorKind::ConnectionRefused));
    assert!(matches!(of(&nowhere), Some(AttemptError::Resolve(_) | AttemptError::Timeout(_))), "{error}");
    assert!(matches!(of(&hole.at), Some(AttemptError::Timeout(_))));
    assert!(error.to_string().contains(&format!("{gone} (Connection refused")), "{error}");
    for name in [&gone, &nowhere, &hole.at] {
        assert!(error.to_string().contains(&name.to_string()), "{error}");
    }
}

#[tokio::test]
async fn the_overall_bound_holds_and_names_who_was_silent() {
    let hole = BlackHole::new();
    let began = Instant::now();
    let error = dial(std::slice::from_ref(&hole.at), LONG, Duration::from_millis(100), None).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(matches!(&error, DialError::Failed(a) if a.len() == 1 && a[0].endpoint == hole.at), "{error}");
}

#[tokio::test]
async fn a_name_is_tried_at_all_of_its_addresses() {
    // `localhost` has ::1 and 127.0.0.1 on most hosts; only the latter listens.
    let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = Endpoint::new("localhost", endpoint(&live).port);
    assert_eq!(dial(std::slice::from_ref(&name), LONG, LONG, None).await.unwrap().1, name);
}

#[tokio::test]
async fn no_candidates_is_an_error_of_its_own() {
    assert!(matches!(dial(&[], LONG, LONG, None).await, Err(DialError::NoCandidates)));
}

#[test]
fn running_out_of_files_names_the_remedy() {
    let of = |code| DialError::OutOfFiles(io::Error::from_raw_os_error(code)).to_string();
    assert!(is_out_of_files(&io::Error::from_raw_os_error(libc::EMFILE)));
    assert!(is_out_of_files(&io::Error::from_raw_os_error(libc::ENFILE)));
    assert!(!is_out_of_files(&io::Error::from_raw_os_error(libc::ECONNREFUSED)));
    assert!(of(libc::EMFILE).contains("LimitNOFILE"));
    assert!(of(libc::ENFILE).contains("fs.file-max"));
}

#[test]
fn families_alternate_and_the_first_choice_stays_first() {
    let parse = |list: &[&str]| list.iter().map(|a| a.parse().unwrap()).collect::<Vec<SocketAddr>>();
    let mixed = interleave(parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.2:1"]));
    assert_eq!(mixed, parse(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "1.0.0.2:1", "[::3]:1"]));
    assert!(interleave(vec![]).is_empty());
}

/// Runs itself again in a process of few files, so that the other tests keep theirs.
#[test]
fn running_out_of_files_is_told_apart_from_unreachable() {
    const INNER: &str = "TURNOUT_TEST_FEW_FILES";
    if std::env::var_os(INNER).is_none() {
        let inner = std::process::Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg("upstream::dial::tests::running_out_of_files_is_told_apart_from_unreachable")
            .env(INNER, "1")
            .output()
            .unwrap();
        assert!(inner.status.success(), "{}", String::from_utf8_lossy(&inner.stdout));
        assert!(String::from_utf8_lossy(&inner.stdout).contains("1 passed"), "the inner test ran");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut held = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            held.push(file);
        }
        let error = dial(&[endpoint(&live), endpoint(&live)], LONG, LONG, None).await.unwrap_err();
        assert!(matches!(&error, DialError::OutOfFiles(_)), "{error}");
        held.clear();
        assert!(dial(&[endpoint(&live)], LONG, LONG, None).await.is_ok());
    });
}
