// Package waiting waits for groups of goroutines until a context ends.
package waiting
