package sse

import (
	"errors"
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"samovar/internal/fault"
)

func read(r io.Reader) (all []Message, err error) {
	reader := NewReader(r)
	for {
		m, err := reader.Next()
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
}

func TestReader(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []Message
	}{
		"one":             {"data: a\n\n", []Message{{Data: "a"}}},
		"all fields":      {"id: 7\nevent: change\ndata: a\nretry: 5\n\n", []Message{{"7", "change", "a"}}},
		"no space":        {"data:a\n\n", []Message{{Data: "a"}}},
		"two spaces":      {"data:  a\n\n", []Message{{Data: " a"}}},
		"lines":           {"data: a\ndata\ndata: b\n\n", []Message{{Data: "a\n\nb"}}},
		"comments":        {": hello\n\n: alive\ndata: a\n:\n\n", []Message{{Data: "a"}}},
		"id stays":        {"id: 7\ndata: a\n\ndata: b\n\n", []Message{{ID: "7", Data: "a"}, {ID: "7", Data: "b"}}},
		"id alone":        {"id: 7\n\ndata: b\n\n", []Message{{ID: "7", Data: "b"}}},
		"id reset":        {"id: 7\ndata: a\n\nid\ndata: b\n\n", []Message{{ID: "7", Data: "a"}, {Data: "b"}}},
		"id with NUL":     {"id: \x00\ndata: a\n\n", []Message{{Data: "a"}}},
		"name no data":    {"event: x\n\ndata: a\n\n", []Message{{Data: "a"}}},
		"CR":              {"data: a\r\rdata: b\r\r", []Message{{Data: "a"}, {Data: "b"}}},
		"CR LF":           {"data: a\r\ndata: b\r\n\r\n", []Message{{Data: "a\nb"}}},
		"byte order mark": {"\ufeffdata: a\n\n", []Message{{Data: "a"}}},
		"cut off":         {"data: a\n\ndata: b\n", []Message{{Data: "a"}}},
		"empty data":      {"data:\n\n", []Message{{}}},
		"unknown field":   {"datum: x\ndata: a\n\n", []Message{{Data: "a"}}},
	} {
		for way, r := range map[string]io.Reader{"whole": strings.NewReader(c.text), "bytes": iotest.OneByteReader(strings.NewReader(c.text))} {
			if got, err := read(r); err != io.EOF || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s, %s: %q, %v", name, way, got, err)
			}
		}
	}
}

func TestReaderBounds(t *testing.T) {
	line := "data: " + strings.Repeat("x", MaxMessage/2) + "\n"
	for name, text := range map[string]string{"line": "data: " + strings.Repeat("x", MaxMessage+1), "message": line + line + line + "\n"} {
		if _, err := read(strings.NewReader(text)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken")
	if _, err := read(io.MultiReader(strings.NewReader("data: a\n\n"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a broken stream: %v", err)
	}
}

func TestWriterIsReadBack(t *testing.T) {
	rec := httptest.NewRecorder()
	w, err := NewWriter(rec, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := []Message{{"1", "event", `{"a":1}`}, {"2", "", "two\nlines"}, {"2", "x", ""}}
	for _, m := range want {
		if err := w.Send(m); err != nil {
			t.Fatal(err)
		}
		if err := w.Comment("alive"); err != nil {
			t.Fatal(err)
		}
	}
	if !rec.Flushed || rec.Header().Get("Content-Type") != ContentType {
		t.Errorf("flushed %v, header %v", rec.Flushed, rec.Header())
	}
	if got, err := read(rec.Body); err != io.EOF || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if err := w.Send(Message{ID: "a\nb"}); !fault.Is(err, fault.Internal) {
		t.Errorf("an id of two lines: %v", err)
	}
}

// FuzzReader checks that any bytes are read to an end, the same in one piece and byte by byte.
func FuzzReader(f *testing.F) {
	f.Add("id: 1\nevent: x\ndata: y\r\n\r\n: c\r\rdata\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, errA := read(strings.NewReader(text))
		b, errB := read(iotest.OneByteReader(strings.NewReader(text)))
		if !reflect.DeepEqual(a, b) || errA.Error() != errB.Error() {
			t.Errorf("%q, %v\n%q, %v", a, errA, b, errB)
		}
	})
}
