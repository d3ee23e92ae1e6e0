//! `starling server --embedded`: a management cluster in one process and one folder, and its next life.

mod crash;
mod explain;
mod refuse;
mod restart;
mod world;
