//! Loaded plans for requests that leave out devices, as others compute on them meanwhile.

use super::Loaded;
use crate::planning::Request;

impl Loaded {
    /// Whether a plan for another question may leave its weights where they lie.
    pub fn may_keep(&self, request: &Request) -> bool {
        let asked = self.request.as_ref();
        asked.is_some_and(|asked| asked.places_the_same(&self.as_placed(asked, request)))
    }

    /// A request as if it left out the same devices as what the plan was made for, where the plan
    /// is on none that it leaves out, and none was left out then that it has: the plan is then the
    /// one that it asks for.
    pub(super) fn where_it_is(&self, asked: &Request, request: &Request) -> Request {
        match asked.left_out.iter().all(|device| request.left_out.contains(device)) {
            true => self.as_placed(asked, request),
            false => request.clone(),
        }
    }

    /// The same also where more devices were left out then: its weights may stay.
    pub(super) fn as_placed(&self, asked: &Request, request: &Request) -> Request {
        let left_out = match request.left_out.iter().any(|device| self.plan.uses(device)) {
            true => request.left_out.clone(),
            false => asked.left_out.clone(),
        };
        Request { left_out, ..request.clone() }
    }
}
