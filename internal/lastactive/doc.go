// Package lastactive records the connection on which another process has sent last. The goroutines
// of a process poll that connection before they park.
//
// Its methods are safe for concurrent use.
package lastactive
