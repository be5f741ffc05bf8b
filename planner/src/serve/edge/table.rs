//! A table of addresses: what each does, for people and for the router at once.

use axum::Router;
use axum::routing::MethodRouter;

use super::openapi::Operation;
use super::state::Edge;

/// Addresses with what is known of them.
#[derive(Default)]
pub struct RouteTable {
    router: Router<Edge>,
    operations: Vec<Operation>,
}

impl RouteTable {
    /// Adds what one method of an address does.
    pub fn add(mut self, operation: Operation, handler: MethodRouter<Edge>) -> RouteTable {
        self.router = self.router.route(operation.path, handler);
        self.operations.push(operation);
        self
    }

    /// What each of them does.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The router of them.
    pub fn router(self) -> Router<Edge> {
        self.router
    }
}
