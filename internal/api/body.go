package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"samovar/internal/fault"
)

// maxBody bounds the JSON of a request; a volume that names 16 pools takes 2 KiB.
const maxBody = 64 << 10

// refusal is an error with an HTTP status of its own, where HTTP knows more exactly than the kind what is wrong
// with the form of a request.
type refusal struct {
	error
	status int
}

func (r refusal) Unwrap() error { return r.error }

func refuse(status int, op, text string) error {
	return refusal{fault.New(fault.Invalid, op, text), status}
}

// body reads a request's body, of at most limit bytes, within the body time-out.
func (s *Server) body(w http.ResponseWriter, r *http.Request, op string, limit int64) ([]byte, error) {
	rc := http.NewResponseController(w)
	// A test's writer may have no deadlines; a real connection has them. The deadline must go again: the server
	// goes on reading to notice a peer that leaves.
	_ = rc.SetReadDeadline(time.Now().Add(s.options.BodyTimeout))
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, refuse(http.StatusRequestEntityTooLarge, op, fmt.Sprintf("the request is longer than %d bytes", limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refuse(http.StatusRequestTimeout, op, fmt.Sprintf("the request did not arrive within %v", s.options.BodyTimeout))
	case err != nil:
		return nil, fault.Wrap(fault.Aborted, op, err)
	}
	_ = rc.SetReadDeadline(time.Time{})
	return data, nil
}

// decode reads the JSON of a request into v.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, op string, v any) error {
	data, err := s.body(w, r, op, maxBody)
	if err != nil {
		return err
	}
	return parse(r, op, data, v)
}

// decodeOptional is decode for a request that may have no body.
func (s *Server) decodeOptional(w http.ResponseWriter, r *http.Request, op string, v any) error {
	data, err := s.body(w, r, op, maxBody)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return err
	}
	return parse(r, op, data, v)
}

func parse(r *http.Request, op string, data []byte, v any) error {
	bad := func(text string) error { return fault.New(fault.Invalid, op, text) }
	if len(bytes.TrimSpace(data)) == 0 {
		return bad("the request has no body; it wants a JSON object")
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, op, "the request needs the header Content-Type: application/json")
	}
	// A list, a number or null would be taken for an empty object or give an obscure error.
	if first := bytes.TrimSpace(data)[0]; first != '{' {
		return bad("the request is not a JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return bad(explain(err))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return bad("something follows the JSON object")
	}
	return nil
}

// explain says what is wrong with JSON in words that do not need Go.
func explain(err error) string {
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrongType):
		want := wrongType.Type.String()
		switch {
		case strings.HasPrefix(want, "uint"):
			want = "a whole number, not negative"
		case strings.HasPrefix(want, "int"):
			want = "a whole number"
		case strings.HasPrefix(want, "["):
			want = "a list"
		case strings.HasPrefix(want, "bool"):
			want = "true or false"
		default:
			want = "a " + want
		}
		return fmt.Sprintf("field %q wants %s, not a %s", wrongType.Field, want, wrongType.Value)
	case errors.As(err, &syntax):
		return fmt.Sprintf("not valid JSON at byte %d: %v", syntax.Offset, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the JSON is cut off"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// answer sends value as JSON. It is encoded first, so that a failure can still become a problem.
func (s *Server) answer(w http.ResponseWriter, status int, value any) error {
	data, err := encode(value)
	if err != nil {
		return fault.Wrap(fault.Internal, "encode the answer", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // a peer that left needs no answer
	return nil
}

// encode is json.Marshal without the escapes that only HTML needs.
func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
