// Package inotify tells of changes of files, where the system does: on Linux.
package inotify
