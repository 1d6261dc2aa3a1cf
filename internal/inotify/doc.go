// Package inotify tells of changes of files, where the system does: on Linux. Where that has no
// watch left, its users look by themselves.
package inotify
