//! Private links and network namespaces for the demo, the benchmarks and the tests.
