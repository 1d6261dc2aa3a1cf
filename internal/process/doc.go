// Package process watches processes by their pidfds, and duplicates and closes the descriptors that
// processes send to each other. It does not depend on connections.
//
// A [Process] is the process that lived when the watch began, never a later one with the same
// process id. Its methods are safe for concurrent use.
package process
