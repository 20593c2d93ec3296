//! What C programs get: the header and pages made of the sources, the library, an installation.
mod generate;
mod header;
mod install;
mod model;
