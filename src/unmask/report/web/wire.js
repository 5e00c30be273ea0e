// Requests -> responses of the server: JSON, or events one at a time. An error is a Fault with a one-line message.

export class Fault extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Wire {
  constructor() {
    this.token = sessionStorage.getItem("unmask-token") ?? "";
  }

  // Keep the token while this tab is open.
  use(token) {
    this.token = token;
    sessionStorage.setItem("unmask-token", token);
  }

  async get(path) {
    return (await this._ask(path, {})).json();
  }

  // The events of a walk: [event, its line of JSON].
  async *events(body, signal) {
    const headers = { "content-type": "application/json" };
    const answer = await this._ask("/v1/paths", { method: "POST", headers, body: JSON.stringify(body), signal });
    let rest = "";
    for await (const part of pieces(answer.body)) {
      const blocks = (rest + part).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield parsed(block);
    }
  }

  async _ask(path, options) {
    const headers = { ...options.headers, ...(this.token && { authorization: `Bearer ${this.token}` }) };
    let answer = null;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Fault("the server does not answer: see whether it still runs");
    }
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => null);
    const fault = new Fault(said?.error?.message ?? `the server answers with status ${answer.status}`, answer.status);
    throw Object.assign(fault, { setting: said?.error?.param ?? "" });
  }
}

async function* pieces(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault("the connection broke off: see whether the server still runs");
  } finally {
    reader.releaseLock();
  }
}

function parsed(block) {
  const line = block.replace(/^event: .*\n/, "").replace(/^data: /, "");
  const event = JSON.parse(line);
  if (event.error) throw Object.assign(new Fault(event.error.message), { line });
  return [event, line];
}
