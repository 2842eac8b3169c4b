package sse

import (
	"net/http"
	"strings"
	"time"

	"samovar/internal/fault"
)

// Writer sends messages over one HTTP answer. It is used by one goroutine.
type Writer struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

// NewWriter sends the header of a stream. A peer that takes longer than limit to accept a message is given up.
func NewWriter(w http.ResponseWriter, limit time.Duration) (*Writer, error) {
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	w.WriteHeader(http.StatusOK)
	s := &Writer{w: w, rc: http.NewResponseController(w), limit: limit}
	return s, s.Comment("samovar")
}

// Send writes one message.
func (s *Writer) Send(m Message) error {
	if strings.ContainsAny(m.ID, "\r\n\x00") || strings.ContainsAny(m.Name, "\r\n") {
		return fault.New(fault.Internal, "send an event", "an id or a name of more than one line")
	}
	var b strings.Builder
	if m.ID != "" {
		b.WriteString("id: " + m.ID + "\n")
	}
	if m.Name != "" {
		b.WriteString("event: " + m.Name + "\n")
	}
	for line := range strings.SplitSeq(m.Data, "\n") {
		b.WriteString("data: " + line + "\n")
	}
	return s.put(b.String() + "\n")
}

// Comment writes a line that readers skip.
func (s *Writer) Comment(text string) error { return s.put(": " + text + "\n\n") }

func (s *Writer) put(text string) error {
	// Writers without deadlines exist in tests; a real connection has them.
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.limit))
	defer s.rc.SetWriteDeadline(time.Time{}) // or it would hit what comes later on this connection
	if _, err := s.w.Write([]byte(text)); err != nil {
		return fault.Wrap(fault.Aborted, "send an event", err)
	}
	if err := s.rc.Flush(); err != nil {
		return fault.Wrap(fault.Aborted, "send an event", err)
	}
	return nil
}
