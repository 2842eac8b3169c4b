package sse

import (
	"bufio"
	"io"
	"strings"

	"samovar/internal/fault"
)

// MaxMessage bounds the bytes of one message, and of one line.
const MaxMessage = 1 << 20

// Reader takes a stream apart. It is used by one goroutine.
type Reader struct {
	in      *bufio.Reader
	line    []byte // reused
	id      string // the last one seen: it stays valid until another comes
	fresh   bool   // nothing was read yet: a byte order mark may stand in front
	afterCR bool   // the last line ended with CR: a LF that follows belongs to it
}

// NewReader reads the stream r.
func NewReader(r io.Reader) *Reader { return &Reader{in: bufio.NewReader(r), fresh: true} }

// Next returns the next message that has data, or io.EOF. A message cut off by the end of the stream is dropped,
// as the standard wants: it will be sent again.
func (r *Reader) Next() (Message, error) {
	var m Message
	var data strings.Builder
	some := false
	for {
		line, err := r.next()
		if err != nil {
			return Message{}, err
		}
		if r.fresh {
			line, r.fresh = strings.TrimPrefix(line, "\ufeff"), false
		}
		if line == "" {
			if some {
				m.ID, m.Data = r.id, data.String()
				return m, nil
			}
			m = Message{}
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			if !strings.Contains(value, "\x00") {
				r.id = value
			}
		case "event":
			m.Name = value
		case "data":
			if some {
				data.WriteByte('\n')
			}
			some = true
			if data.Len()+len(value) > MaxMessage {
				return Message{}, tooLong()
			}
			data.WriteString(value)
		}
	}
}

// next reads one line, which CR, LF or both end. A CR ends it at once: a live stream must not wait for the byte
// behind it.
func (r *Reader) next() (string, error) {
	r.line = r.line[:0]
	for {
		c, err := r.in.ReadByte()
		if err != nil {
			return "", err
		}
		swallowed := r.afterCR && c == '\n'
		r.afterCR = c == '\r'
		switch {
		case swallowed:
		case c == '\r', c == '\n':
			return string(r.line), nil
		case len(r.line) == MaxMessage:
			return "", tooLong()
		default:
			r.line = append(r.line, c)
		}
	}
}

func tooLong() error {
	return fault.New(fault.Corrupt, "read events", "a message is longer than 1 MiB")
}
