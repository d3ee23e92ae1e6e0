//! From a tree to a rendered set; the one module that starts processes.
