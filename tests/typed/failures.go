package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/go-logr/logr"
)

// failures is a log that keeps errors alone.
type failures struct {
	lock sync.Mutex
	seen map[string]bool
}

func (f *failures) all() []string {
	f.lock.Lock()
	defer f.lock.Unlock()
	all := []string{}
	for text := range f.seen {
		all = append(all, text)
	}
	sort.Strings(all)
	return all
}

// Init implements logr.LogSink.
func (f *failures) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (f *failures) Enabled(int) bool { return false }

// Info implements logr.LogSink.
func (f *failures) Info(int, string, ...any) {}

// Error implements logr.LogSink.
func (f *failures) Error(err error, message string, _ ...any) {
	if errors.Is(err, context.Canceled) {
		// The manager ended in the middle of a reconcile.
		return
	}
	if message == "error received after stop sequence was engaged" {
		// The end of a leader is an error for the manager, whether another part ends before it or not.
		return
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.seen == nil {
		f.seen = map[string]bool{}
	}
	f.seen[fmt.Sprintf("%s: %v", message, err)] = true
}

// WithValues implements logr.LogSink.
func (f *failures) WithValues(...any) logr.LogSink { return f }

// WithName implements logr.LogSink.
func (f *failures) WithName(string) logr.LogSink { return f }
