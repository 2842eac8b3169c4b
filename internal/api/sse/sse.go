// Package sse writes and reads server-sent events, the text/event-stream format of the HTML standard.
//
//	: a comment, sent to keep the connection alive
//	id: 0000000001
//	event: event
//	data: {"reason":"attached"}
//	                                <- an empty line ends a message
//
// It knows the format and nothing of what is sent.
package sse

// ContentType is the media type of a stream.
const ContentType = "text/event-stream"

// Message is one event of a stream.
type Message struct {
	ID   string // empty: none; the last one received is where a broken stream resumes
	Name string // of the event; empty means "message"
	Data string
}
