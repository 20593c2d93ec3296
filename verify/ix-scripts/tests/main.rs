//! All packet scripts, and the list of requirements that they and the sources name.
mod requirements;
mod scripts;
