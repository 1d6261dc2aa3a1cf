// Package lastactive tells the goroutines of a process where to look before they park: at the
// connection by which another process has sent something last.
//
// Its methods are safe for concurrent use.
package lastactive
