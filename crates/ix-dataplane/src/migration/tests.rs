//! Flow groups move between elastic threads.
