// Package inotify reports changes of files, on Linux. If the system has no watch left, it reports
// possible changes periodically.
package inotify
