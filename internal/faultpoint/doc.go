// Package faultpoint lets a test kill a process, or stop a goroutine, at a named place in the code.
//
// Code marks a place with [Hit]. A test starts a child process with
// [Variable] set to the name of that place, and the child ends itself there
// by SIGKILL, as if it had crashed: nothing is flushed, no deferred function
// runs. Name "point:3" means the third time. With "stop=point:3" the goroutine that comes there
// stops for good, with the locks that it holds. Without the variable, Hit is the
// load of one global that never changes.
//
// The package is safe for concurrent use.
package faultpoint
