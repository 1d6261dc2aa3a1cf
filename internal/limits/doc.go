// Package limits says how many descriptors a process may have, and what to do about a limit
// of the system that an error tells of: which one to raise. The words are the same wherever
// the limit is met.
package limits
