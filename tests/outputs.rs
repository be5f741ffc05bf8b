//! Where outputs go and what they hold: destinations of every kind, formats, names, settings, leftovers.

mod support;
