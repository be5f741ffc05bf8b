//! Connections: so many at a time, so many of one address, and each with its times.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tower_service::Service;

use super::asker::Peer;
use super::limits::{HEADER_BYTES_MAX, WORKERS_MAX};
use super::listen::Socket;
use super::polls;
use super::rest::SharedBody;
use super::routes;
use super::stall::StallGuard;
use super::state::Edge;

/// How long nothing is taken after the system could not give a connection, as for want of file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is told to stop.
///
/// # Errors
/// There can be no runtime, or a socket is none.
pub fn run(edge: Edge, sockets: Vec<Socket>) -> io::Result<()> {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(WORKERS_MAX)
        .thread_name("edge-worker")
        .build()?;
    let served = runtime.block_on(serve(edge, sockets));
    // What still computes is of no use to anybody.
    runtime.shutdown_background();
    served
}

async fn serve(edge: Edge, sockets: Vec<Socket>) -> io::Result<()> {
    let connections = Arc::new(Connections::new(&edge));
    let router = routes::router(edge.clone());
    let mut ours: Vec<PathBuf> = Vec::new();
    for socket in sockets {
        let (connections, router) = (connections.clone(), router.clone());
        match socket {
            Socket::Tcp(socket) => {
                let socket = TcpListener::from_std(socket)?;
                tokio::spawn(accept_tcp(edge.clone(), socket, router, connections));
            }
            Socket::Unix(socket, path) => {
                ours.extend(path);
                let socket = UnixListener::from_std(socket)?;
                tokio::spawn(accept_unix(edge.clone(), socket, router, connections));
            }
        }
    }
    let grace = grace(&edge).await;
    // All places are free again when the last connection has ended.
    let all = u32::try_from(edge.limits().connections).unwrap_or(u32::MAX);
    let _ = timeout(grace, connections.places.acquire_many(all)).await;
    for path in ours {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Waits until the server is to stop.
async fn grace(edge: &Edge) -> Duration {
    let mut stopping = edge.stopping();
    let grace = stopping.wait_for(Option::is_some).await;
    // Without its sender there is nobody left to serve for.
    grace.ok().and_then(|grace| *grace).unwrap_or_default()
}

async fn accept_tcp(edge: Edge, socket: TcpListener, router: Router, all: Arc<Connections>) {
    let accepting = async {
        loop {
            let place = all.wait().await;
            match socket.accept().await {
                Ok((stream, address)) => {
                    let local = stream.local_addr().ok().map(|local| local.ip());
                    let peer = Peer { address: Some(address.ip()), local };
                    // An answer is often two small writes, of which the second must not wait.
                    let _ = stream.set_nodelay(true);
                    if let Some(share) = Connections::share(&all, address.ip()) {
                        tokio::spawn(talk(
                            edge.clone(),
                            stream,
                            peer,
                            router.clone(),
                            (place, Some(share)),
                        ));
                    }
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = grace(&edge) => {}
    }
}

async fn accept_unix(edge: Edge, socket: UnixListener, router: Router, all: Arc<Connections>) {
    let peer = Peer { address: None, local: None };
    let accepting = async {
        loop {
            let place = all.wait().await;
            match socket.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(talk(edge.clone(), stream, peer, router.clone(), (place, None)));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = grace(&edge) => {}
    }
}

/// Answers the requests of one connection until it ends.
async fn talk<S>(
    edge: Edge,
    stream: S,
    peer: Peer,
    router: Router,
    _place: (OwnedSemaphorePermit, Option<Share>),
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let request = request.map(Body::new);
        answer(&edge, router.clone(), request, peer)
    });
    let guarded = StallGuard::new(stream, edge.limits().stream_stall);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    http.header_read_timeout(edge.limits().header_timeout);
    http.max_buf_size(HEADER_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(guarded), service));
    tokio::select! {
        // A connection that breaks off has nobody to tell it to.
        _ = connection.as_mut() => return,
        _ = grace(&edge) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer(
    edge: &Edge,
    mut router: Router,
    mut request: Request,
    peer: Peer,
) -> Result<Response, Infallible> {
    request.extensions_mut().insert(peer);
    if let Some(id) = polls::job_of(&request).map(str::to_owned) {
        return Ok(polls::answer(edge, request, id).await);
    }
    let (parts, body) = request.into_parts();
    let body = SharedBody::new(body);
    let answer = router.call(Request::from_parts(parts, Body::new(body.clone()))).await;
    body.read_rest().await;
    answer
}

/// How many connections there are.
struct Connections {
    places: Arc<Semaphore>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    of_one_max: usize,
}

/// One of the connections of an address.
struct Share {
    all: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    fn new(edge: &Edge) -> Connections {
        let limits = edge.limits();
        Connections {
            places: Arc::new(Semaphore::new(limits.connections)),
            by_address: Mutex::default(),
            of_one_max: limits.client_connections,
        }
    }

    /// Waits for a place among all; meanwhile the system keeps who comes.
    async fn wait(&self) -> OwnedSemaphorePermit {
        let place = self.places.clone().acquire_owned().await;
        place.expect("nobody closes this semaphore")
    }

    /// A place among those of an address; `None` where it has too many.
    fn share(all: &Arc<Connections>, address: IpAddr) -> Option<Share> {
        let address = address.to_canonical();
        let mut by_address = all.lock();
        let count = by_address.entry(address).or_insert(0);
        if *count >= all.of_one_max {
            return None;
        }
        *count += 1;
        Some(Share { all: all.clone(), address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut by_address = self.all.lock();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}
