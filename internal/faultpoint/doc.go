// Package faultpoint lets a test kill a process, or stop a goroutine, at a named place in the code.
//
// Code marks a place with [Hit]. A test starts a child process with [Variable] set
// to the name of that place. The child kills itself there by SIGKILL, as in a crash:
// no buffer is flushed, no deferred function runs. The value "point:3" means the
// third hit. With "stop=point:3" the goroutine that comes there stops for good, with
// the locks that it holds. Without the variable, Hit is the load of one global that
// never changes.
//
// The package is safe for concurrent use.
package faultpoint
