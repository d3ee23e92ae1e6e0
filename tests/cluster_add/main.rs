//! `starling cluster add`, with the real program against real control planes: the objects on both sides, the supported
//! sign-ins, the permissions of the account, and the renewal of its token.

mod adding;
mod refusals;
mod renewing;
mod rights;
mod sign_in;
mod world;
