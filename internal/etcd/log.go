package etcd

import (
	"context"
	"log/slog"
	"runtime"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapCore carries etcd's log over to slog, one level lower each: what etcd calls information is of interest when
// etcd is the question, and its warnings (a slow disk, a peer that is away) are information about a healthy daemon.
// While the member closes everything is Debug: etcd reports every listener that it closes as an error.
type zapCore struct {
	slog    *slog.Logger
	closing <-chan struct{}
	fields  []zapcore.Field
}

func newZapCore(logger *slog.Logger, closing <-chan struct{}) *zapCore {
	return &zapCore{slog: logger, closing: closing}
}

// logger makes etcd's logger. Where etcd would end the process (Fatal: its disk failed; Panic: its files contradict
// each other), the goroutine ends instead and failed is told: volumes are served without the store, and must not
// die with it.
func (c *zapCore) logger(failed func(text string)) *zap.Logger {
	hook := failureHook(failed)
	return zap.New(c, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

type failureHook func(text string)

func (h failureHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	text := entry.Message
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		if f.Key == "error" {
			f.AddTo(encoder)
			if cause, ok := encoder.Fields["error"].(string); ok {
				text += ": " + cause
			}
		}
	}
	h(text)
	runtime.Goexit()
}

func (c *zapCore) level(l zapcore.Level) slog.Level {
	select {
	case <-c.closing:
		if l < zapcore.DPanicLevel {
			return slog.LevelDebug
		}
	default:
	}
	switch {
	case l < zapcore.InfoLevel:
		return slog.LevelDebug - 4
	case l == zapcore.InfoLevel:
		return slog.LevelDebug
	case l == zapcore.WarnLevel:
		return slog.LevelInfo
	case l == zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Enabled implements zapcore.Core.
func (c *zapCore) Enabled(l zapcore.Level) bool {
	return c.slog.Enabled(context.Background(), c.level(l))
}

// With implements zapcore.Core.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{slog: c.slog, closing: c.closing, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check implements zapcore.Core.
func (c *zapCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *zapCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	attrs := []slog.Attr{slog.String("component", "etcd")}
	if entry.LoggerName != "" {
		attrs = append(attrs, slog.String("part", entry.LoggerName))
	}
	for _, list := range [][]zapcore.Field{c.fields, fields} {
		for _, f := range list {
			f.AddTo(encoder)
			if v, ok := encoder.Fields[f.Key]; ok {
				attrs = append(attrs, slog.Any(f.Key, v))
			}
		}
	}
	level := c.level(entry.Level)
	if entry.Message == "failed to update storage version" {
		level = slog.LevelDebug // every new member says so until its first snapshot; etcd tries again by itself
	}
	c.slog.LogAttrs(context.Background(), level, entry.Message, attrs...)
	return nil
}

// Sync implements zapcore.Core.
func (c *zapCore) Sync() error { return nil }
