// Package headroom finds out how much memory this process may still take, and takes
// it for a file in one go.
//
// Shared memory has no limit of its own that a process would be told of: what is
// more than the machine or the control group has is granted, and then costs some
// process its life. So whoever makes a segment looks first. What is free now may be
// gone a moment later: the look catches what could never fit, and no race.
package headroom
