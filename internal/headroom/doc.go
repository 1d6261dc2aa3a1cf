// Package headroom reads how much memory this process may still use, and allocates
// the pages of a file.
//
// The kernel grants shared memory beyond the limit of the machine or the control
// group, and later kills a process when the memory is used. So a process that makes
// a segment checks the limits first. Free memory may be used up a moment later: the
// check refuses sizes that can never fit, and does not prevent races.
package headroom
