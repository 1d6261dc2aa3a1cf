// Package limits reads how many descriptors a process may have open, and gives advice for an
// error that a limit of the system has caused: which limit to raise. All packages use the same
// texts.
package limits
