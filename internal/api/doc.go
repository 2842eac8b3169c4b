// Package api serves a cluster to people and programs: REST with JSON, and streams of server-sent events, on one
// port. openapi.json beside this file describes it, by hand; a test keeps routes, types and description in step.
//
//	request -> log, panics -> closing? -> cross-origin? -> route -> checks -> Backend -> JSON
//	                                                         |                   |
//	                                                         +-- any error ------+-> problem + HTTP status
//
//	stream:  Follow ---> id, event, data ...        ends: the peer leaves, the source ends, or the server closes;
//	         nothing --> ": alive" now and then     resumes: Last-Event-ID
//
// Its job is transport: form, bounds, deadlines, errors. It must not know how the cluster works; everything
// that acts is behind Backend. Sub-packages: problem (errors in JSON), request (the bounds of requests), sse
// (the format of streams), client (the typed client), fake (a cluster in memory, for tests of faces).
//
// Locks: Server.mu is a leaf; no I/O and no Backend call happens under it.
package api
