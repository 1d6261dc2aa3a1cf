// Package doctor finds out whether this machine can run a host and its
// processes: what the kernel offers, what limits are set, whether Python is
// there. It tries things rather than comparing version numbers.
//
// It changes nothing: what it makes to try something out is gone when [Examine]
// returns. It trusts the kernel and nothing else; its answers are
// for people. What GPUs offer it is told, by a caller that has their driver, and
// only puts into words.
package doctor
